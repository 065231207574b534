"""One pause over many sidecars: all of them have quiesced, or none stays paused.

    held = pause_all(clients, timeout_seconds=300)      # FanOutError names those that have not quiesced
    ...
    resume_all(held, timeout_seconds=300)               # FanOutError names those that did not resume

Sidecars are called at the same time, one thread each, so the slowest alone decides how long it takes. What may
pass by itself (a restart, a worker that is not back yet) is repeated until the time is up. `HeldPause` may be
used from several threads: a renewal never meets the resume of the same pause.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from trainer_hooks.client import ControlClient
from trainer_hooks.control_errors import (
    ControlConflictError,
    ControlError,
    ControlStatusError,
    ControlTransportError,
)
from trainer_hooks.control_requests import PauseMode

logger = logging.getLogger(__name__)

LEASE_SECONDS = 120.0
"""How long a pause lasts unless it is renewed; the sidecar's own default too."""

_FIRST_DELAY, _LONGEST_DELAY = 0.2, 5.0
Sleep = Callable[[float], None]


class FanOutError(RuntimeError):
    """Some sidecars did not do what was asked; `failures` says which and why, by control URL."""

    def __init__(self, message: str, failures: Mapping[str, str]) -> None:
        named = "; ".join(f"{url}: {reason}" for url, reason in failures.items())
        super().__init__(f"{message}: {named}")
        self.failures = dict(failures)


class PauseLostError(RuntimeError):
    """The lease of a pause ran out, or somebody lifted it, while it was needed."""


class HeldPause:
    """One sidecar's pause. `renew` and `resume` exclude each other."""

    def __init__(self, client: ControlClient, reply: Mapping[str, Any]) -> None:
        self.client = client
        self.url = client.base_url
        self.pause_id = str(reply["pause_id"])
        self.quiesced = reply.get("quiesced") is True
        self.reply = dict(reply)
        self.lifted = False
        self._lock = threading.Lock()

    def renew(self, lease_seconds: float = LEASE_SECONDS) -> None:
        """Give the pause another `lease_seconds`; nothing once it is lifted. Raises `ControlError`."""
        with self._lock:
            if not self.lifted:
                self.client.pause_rollout(pause_id=self.pause_id, timeout_seconds=0.0, lease_seconds=lease_seconds)

    def resume(self, *, version: str | None = None, reason: str | None = None) -> None:
        """Lift this pause and no other. Raises `ControlError`."""
        with self._lock:
            if not self.lifted:
                self.client.resume_rollout(pause_id=self.pause_id, version=version, reason=reason)
                self.lifted = True


@dataclass(frozen=True, slots=True)
class FleetPause:
    """`held`: the pauses in force, quiesced or not. `failures`: why a sidecar is not paused and quiet, by URL."""

    held: tuple[HeldPause, ...]
    failures: dict[str, str]


def pause_all(
    clients: Sequence[ControlClient],
    *,
    timeout_seconds: float,
    mode: PauseMode = "abort",
    reason: str | None = None,
    lease_seconds: float = LEASE_SECONDS,
    required: bool = True,
    still_lives: Callable[[str], bool] = lambda url: True,
    sleep: Sleep = time.sleep,
) -> FleetPause:
    """Pause every sidecar; each has `timeout_seconds` to quiesce, repeated connects included.

    `still_lives(url)` is asked about one that does not answer: one that is gone for good needs no pause.

    `required`: unless all have quiesced, resume those that were paused and raise `FanOutError`. Otherwise keep
    what could be had; see `failures`.
    """
    if not clients:
        raise FanOutError("no sidecar to pause", {"TITO_CONTROL_URL": "names none"})

    def pause(client: ControlClient) -> HeldPause | str | None:
        return _pause_one(client, timeout_seconds, mode, reason, lease_seconds, still_lives, sleep)

    results = _each(pause, clients)
    held = tuple(one for one in results if isinstance(one, HeldPause))
    failures = {
        client.base_url: one for client, one in zip(clients, results, strict=True) if isinstance(one, str)
    } | {one.url: _running(one) for one in held if not one.quiesced}
    if failures and required:
        try:
            resume_all(held, timeout_seconds=_LONGEST_DELAY, reason="pause failed elsewhere", sleep=sleep)
        except FanOutError as error:
            logger.error("after a failed pause: %s; its lease ends within %g s", error, lease_seconds)
        raise FanOutError(
            f"{len(failures)} of {len(clients)} sidecars did not quiesce, nothing is paused", failures
        )
    return FleetPause(held, failures)


def resume_all(
    held: Sequence[HeldPause],
    *,
    timeout_seconds: float,
    version: str | None = None,
    reason: str | None = None,
    still_lives: Callable[[str], bool] = lambda url: True,
    sleep: Sleep = time.sleep,
) -> None:
    """Lift every pause by its id, repeating for `timeout_seconds` what may pass by itself.

    `still_lives(url)` is asked about one that does not answer: one that is gone for good holds nobody up.

    Raises `FanOutError` naming those that are still paused, or were not any more. Replicas on one store share a
    pause: where one has lifted it, `pause_expired` at another is no failure.
    """

    def resume(one: HeldPause) -> str | None:
        return _resume_one(one, timeout_seconds, version, reason, still_lives, sleep)

    reasons = _each(resume, held)
    lifted = {one.pause_id for one, why in zip(held, reasons, strict=True) if why is None}
    failures = {}
    for one, why in zip(held, reasons, strict=True):
        if why is not None and not (why.startswith(_EXPIRED) and one.pause_id in lifted):
            failures[one.url] = why
    if failures:
        raise FanOutError(f"{len(failures)} of {len(held)} sidecars did not resume", failures)


_EXPIRED = "pause_expired"


def _pause_one(
    client: ControlClient,
    timeout_seconds: float,
    mode: PauseMode,
    reason: str | None,
    lease_seconds: float,
    still_lives: Callable[[str], bool],
    sleep: Sleep,
) -> HeldPause | str | None:
    """The pause, why there is none, or None where the sidecar is gone."""
    for left in _attempts(timeout_seconds, sleep):
        try:
            reply = client.pause_rollout(
                mode=mode, reason=reason, timeout_seconds=max(left, 0.0), lease_seconds=lease_seconds
            )
            return HeldPause(client, reply)
        except ControlError as error:
            failure = str(error)
            if not _may_pass(error):
                return failure
            if error.code == "connect_failed" and _is_gone(client.base_url, still_lives):
                logger.warning("the sidecar at %s is gone, and needs no pause: %s", client.base_url, failure)
                return None
        except (KeyError, TypeError) as error:
            return f"its reply to a pause is not understood ({error!r})"
    return failure


def _is_gone(url: str, still_lives: Callable[[str], bool]) -> bool:
    try:
        return not still_lives(url)
    except ControlError as error:
        logger.warning("whether the sidecar at %s is gone is not known: %s", url, error)
        return False


def _resume_one(
    one: HeldPause,
    timeout_seconds: float,
    version: str | None,
    reason: str | None,
    still_lives: Callable[[str], bool],
    sleep: Sleep,
) -> str | None:
    maybe_done = False
    for _ in _attempts(timeout_seconds, sleep):
        try:
            one.resume(version=version, reason=reason)
            return None
        except ControlConflictError as error:
            if error.code != _EXPIRED:
                return str(error)
            # after a try that had no reply this says that it took effect
            return None if maybe_done else f"{_EXPIRED}: {error}"
        except ControlError as error:
            failure = str(error)
            if not _may_pass(error):
                return failure
            if error.code == "connect_failed" and _is_gone(one.url, still_lives):
                logger.warning("the sidecar at %s is gone, and needs no resume: %s", one.url, failure)
                return None
            maybe_done = maybe_done or (isinstance(error, ControlTransportError) and error.code != "connect_failed")
    return failure


def _attempts(timeout_seconds: float, sleep: Sleep) -> Iterator[float]:
    """At least one; before each further one a longer rest. Gives the seconds that are left."""
    deadline = time.monotonic() + timeout_seconds
    delay = _FIRST_DELAY
    while True:
        yield deadline - time.monotonic()
        if time.monotonic() + delay >= deadline:
            return
        sleep(delay)
        delay = min(2 * delay, _LONGEST_DELAY)


def _may_pass(error: ControlError) -> bool:
    """No reply, or the other side's trouble; a refusal (4xx) stays one."""
    if isinstance(error, ControlStatusError):
        return error.status is not None and error.status >= 500
    return isinstance(error, ControlTransportError)


def _running(one: HeldPause) -> str:
    running = one.reply.get("running_request_ids") or one.reply.get("abort_failed_request_ids") or []
    return f"not quiesced, {one.reply.get('active')} engine requests still run {list(running)[:5]}"


def _each[T, R](work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    if not items:
        return []
    with ThreadPoolExecutor(max_workers=len(items), thread_name_prefix="tito-fan-out") as pool:
        return list(pool.map(work, items))

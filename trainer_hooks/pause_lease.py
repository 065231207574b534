"""Keeping pauses alive from a background thread while a weight update blocks the trainer's own.

    with LeaseKeeper(held) as keeper:
        update_weights()
    keeper.lost          # why a pause is not in force any more, by control URL

A pause is a lease, so that a trainer that died does not stop the agents for good; whoever lives has to renew it.
One thread; `lost` may be read at any time, and is complete once the keeper is closed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from trainer_hooks.control_errors import ControlConflictError, ControlError
from trainer_hooks.fan_out import LEASE_SECONDS, HeldPause

logger = logging.getLogger(__name__)

RENEW_SECONDS = 30.0


class LeaseKeeper:
    """Renews each pause every `every` seconds until it is closed. A lost one is logged at once and not renewed."""

    def __init__(
        self,
        held: Sequence[HeldPause],
        *,
        every: float = RENEW_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < every < lease_seconds:
            raise ValueError(f"every is {every:g} s; it must be below lease_seconds, which is {lease_seconds:g}")
        self._held = list(held)
        self._every = every
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._renewed_at = {one.url: clock() for one in self._held}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tito-pause-lease", daemon=True)
        self.lost: dict[str, str] = {}
        self.renewals = 0
        """Rounds of renewals so far."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop renewing; returns when no renewal is under way."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        with ThreadPoolExecutor(max_workers=max(1, len(self._held)), thread_name_prefix="tito-renew") as pool:
            while not self._closing.wait(self._every):
                list(pool.map(self._renew, [one for one in self._held if one.url not in self.lost]))
                self.renewals += 1

    def _renew(self, one: HeldPause) -> None:
        asked_at = self._clock()
        try:
            one.renew(self._lease_seconds)
        except ControlConflictError as error:
            self._lose(one, str(error))
        except ControlError as error:
            silent = self._clock() - self._renewed_at[one.url]
            logger.warning("pause_id=%s at %s was not renewed: %s", one.pause_id, one.url, error)
            if silent >= self._lease_seconds:
                self._lose(one, f"not renewed for {silent:.0f} s, its lease is {self._lease_seconds:g} s: {error}")
        else:
            self._renewed_at[one.url] = asked_at

    def _lose(self, one: HeldPause, reason: str) -> None:
        self.lost[one.url] = reason
        logger.error("pause_id=%s at %s is lost, generation goes on there: %s", one.pause_id, one.url, reason)

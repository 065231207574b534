"""Which sidecars a call has to reach: those that are named, and those that a shared store knows to be alive.

A sidecar whose store is shared tells the others through `GET /integration/sidecars`; then that list is the
truth, since replicas come and go. One that has no such list (404), or is alone in it, stands for itself, under the
name by which it was asked: that one is known to reach it. Which leases last is the store's own clock to say.
Blocking calls; the clients that are returned belong to the caller. No shared state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from trainer_hooks.client import ControlClient
from trainer_hooks.control_errors import ControlError, ControlNotFoundError
from trainer_hooks.control_requests import ControlRequest

logger = logging.getLogger(__name__)

_LOOPBACK = ("127.", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class SidecarList:
    """`urls`: control URLs of the live sidecars, in a fixed order. `failures`: why one could not be asked, by URL;
    such a seed is in `urls` all the same unless another seed's list covers it. `shared`: a shared store told."""

    urls: tuple[str, ...]
    failures: dict[str, str]
    shared: bool

    def lives(self, url: str) -> bool:
        """Whether the sidecar that was found at `url` before may be there still. It is gone only if somebody knows:
        where no seed answers, the trainer's own network may be at fault."""
        return url in self.urls or (bool(self.failures) and not self.shared)


def find_sidecars(seeds: Sequence[ControlClient]) -> SidecarList:
    """Ask every seed which sidecars live. Never raises for a seed that does not answer.

    With one list at hand a seed to which no connection can be made is taken for a replica that is gone: the list
    has a lease on each live one. Any other stays, so that whoever has to reach it fails and names it.
    """
    urls: dict[str, None] = {}
    failures: dict[str, str] = {}
    listed = False
    for seed in seeds:
        try:
            entries = _registry(seed)
        except ControlError as error:
            failures[seed.base_url] = str(error)
            if error.code != "connect_failed":  # it is there, whatever ails it: a wrong token, a store that is away
                urls[seed.base_url] = None
            continue
        shared = entries is not None and len(entries) > 1
        listed = listed or shared
        urls |= dict.fromkeys([_control_url(entry, seed) for entry in entries or ()] if shared else [seed.base_url])
    if listed:
        for url in failures.keys() - urls.keys():
            logger.warning("the sidecar at %s is gone, the shared list does not have it: %s", url, failures[url])
    else:
        urls |= dict.fromkeys(failures)
    return SidecarList(tuple(sorted(urls)), failures, listed)


def _registry(seed: ControlClient) -> list[Any] | None:
    try:
        reply: Any = seed.send(ControlRequest("GET", "/integration/sidecars", idempotent=True))
    except ControlNotFoundError:
        return None
    entries = reply.get("sidecars")
    if not isinstance(entries, list):
        raise ControlError(f"{seed.base_url}/integration/sidecars has sidecars={entries!r}; it must be a list")
    return entries


def _control_url(entry: Any, seed: ControlClient) -> str:
    url = entry.get("control_url")
    sidecar_id = entry.get("sidecar_id")
    if not url:
        raise ControlError(
            f"sidecar {sidecar_id!r} in the list of {seed.base_url} has no control_url, so it cannot be paused; "
            "start it with a control listener that others can reach"
        )
    if _is_loopback(url) and not _is_loopback(seed.base_url):
        raise ControlError(
            f"sidecar {sidecar_id!r} in the list of {seed.base_url} has control_url {url}, which is this machine's "
            "own; let it listen on, or advertise, an address that the trainer can reach"
        )
    return str(url).rstrip("/")


def _is_loopback(url: str) -> bool:
    return (urlsplit(url).hostname or "").startswith(_LOOPBACK)


def connect(urls: Iterable[str], token: str | None) -> list[ControlClient]:
    """One client per URL; close them."""
    return [ControlClient(url, token) for url in urls]

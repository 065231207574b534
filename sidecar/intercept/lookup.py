"""Remembers the addresses of host names for a while.

Promise: a name is looked up at most once in ``SECONDS``, however many ask; who asks waits ``WAIT`` at most, and a
name that is not found by then has no addresses yet. What is kept is bounded by the names asked for, which are
those of the settings. The threads are its own: a resolver that does not answer holds up nothing else here.
Concurrency: event loop only.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

SECONDS = 30.0
"""How long addresses are believed; hosts with many of them hand out others every minute or so."""

WAIT = 1.0
"""Seconds for all names of one question together; a resolver that is there answers in far less."""


class Lookup:
    """Addresses by name, from the resolver of this machine."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="lookup")
        self._found: dict[str, tuple[float, asyncio.Future[frozenset[str]]]] = {}

    async def addresses(self, names: Iterable[str]) -> dict[str, frozenset[str]]:
        """The addresses of each name, compressed; empty where it has none or they are not known in time."""
        asked = {name: self._ask(name) for name in names}
        if any(not found.done() for found in asked.values()):
            # Not anew for each question: of a resolver that does not answer only the first ones notice anything.
            since = max(self._found[name][0] for name in asked)
            await asyncio.wait(asked.values(), timeout=max(0.0, since + WAIT - asyncio.get_running_loop().time()))
        return {name: found.result() if found.done() else frozenset() for name, found in asked.items()}

    def _ask(self, name: str) -> asyncio.Future[frozenset[str]]:
        loop = asyncio.get_running_loop()
        since, found = self._found.get(name, (0.0, None))
        if found is None or (found.done() and loop.time() - since > SECONDS):
            found = loop.run_in_executor(self._pool, _look_up, name)
            self._found[name] = (loop.time(), found)
        return found


def _look_up(name: str) -> frozenset[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).compressed for entry in found)

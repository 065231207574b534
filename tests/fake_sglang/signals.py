"""Waiting for things to happen without sleeping and polling.

Promise: a waiter sees every state change that was announced with `fire`, and no change costs anything while
nobody waits. Concurrency: one event loop; nothing here is thread-safe.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn


class Signal:
    """A broadcast: `fire` lets every waiter look again at what it waits for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._waiting = 0

    def fire(self) -> None:
        """Tell all waiters that something changed."""
        if self._waiting:
            event, self._event = self._event, asyncio.Event()
            event.set()

    async def wait_until(self, predicate: Callable[[], object], timeout: float | None = None) -> None:
        """Return once `predicate()` is true; `TimeoutError` after `timeout` seconds (None: no limit)."""
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout):
                while not predicate():
                    await self._event.wait()
        finally:
            self._waiting -= 1


async def wait_any(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Return when one of `events` is set, or after `timeout` seconds without raising."""
    if any(event.is_set() for event in events):
        return
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def forever() -> NoReturn:
    """Wait until cancelled (in a handler: until the client leaves or the engine stops)."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future that nobody sets was set")

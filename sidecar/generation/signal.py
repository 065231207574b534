"""A broadcast: everybody who waits is woken by the next `notify`. One event loop, no state kept."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes all waiters at once; a waiter that was not waiting misses it and has to look at the state."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake everybody who waits now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Until the next `notify`."""
        await self._event.wait()

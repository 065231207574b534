"""Notices that nothing happened for a while, at the cost of one clock reading for what does happen.

A timeout around each wait makes and cancels a timer per event, which at thousands of events per second is a tenth
of all work. Here one timer is armed, and moved on only when it fires too early. One event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Silence:
    """Calls `on_silent` when nothing was heard for `seconds`, and again after each further `seconds`.

    Runs from its making until `close`, which has to be called."""

    def __init__(self, seconds: float, on_silent: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._on_silent = on_silent
        self._last = time.monotonic()
        self._timer = self._loop.call_later(seconds, self._look)

    def heard(self) -> None:
        """Something happened just now."""
        self._last = time.monotonic()

    def since(self, seconds: float) -> bool:
        """Whether something was heard within the last `seconds`."""
        return time.monotonic() - self._last < seconds

    def close(self) -> None:
        """Listen no longer; idempotent."""
        self._timer.cancel()
        self._on_silent = _nothing  # which mostly leads back to its owner: a cycle, left to the collector

    def _look(self) -> None:
        left = self._last + self._seconds - time.monotonic()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
            return
        self._timer = self._loop.call_later(self._seconds, self._look)
        self._on_silent()


def _nothing() -> None:
    pass

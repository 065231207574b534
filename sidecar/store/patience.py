"""Trying again while a database cannot be reached, within a bound.

Promise: calls made during one outage wait together at most about `seconds` from its beginning, later ones try once;
the first success ends it, and so do `seconds` in which nobody tried. Use from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sidecar.store.backend import Fault

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class Patience:
    """What one kind of calls knows of the present outage."""

    def __init__(
        self, seconds: float, lost: Callable[[BaseException], bool], describe: Callable[[BaseException], Fault]
    ) -> None:
        """`seconds` bounds an attempt, and the time from the first failed one to the last. `lost` tells an
        exception after which another attempt may succeed."""
        self._seconds, self._lost, self._describe = seconds, lost, describe
        self._since: float | None = None
        self._failed_at = float("-inf")

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of the first attempt that is not lost. Raises what the last one raised."""
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(self._seconds):
                    result = await attempt()
            except Exception as error:
                if not self._lost(error) or not self._may_wait(began, pause, error):
                    raise
            else:
                self._since = None
                return result
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _may_wait(self, began: float, pause: float, error: BaseException) -> bool:
        now = time.monotonic()
        if self._since is None or began > self._failed_at + self._seconds:
            self._since = now
            log.warning("store %s (trying again for %g s)", self._describe(error).message, self._seconds)
        self._failed_at = now
        return now + pause < self._since + self._seconds

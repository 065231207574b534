"""When the garbage collector looks at everything: not while agents wait for tokens.

CPython looks at all objects whenever they have grown by a quarter. With a thousand streams those are hundreds of
thousands, and the event loop stands still for a quarter of a second, every few seconds. Here only what is young is
collected by itself. Now and then what is left of it is collected once more and then set aside (`gc.freeze`), a
bounded number at a time; everything is looked at when no engine call is in flight, as at every pause. What most
objects are freed by, their reference count, is no matter of the collector. One event loop.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_YOUNG = 2000
_MIDDLE = 10
_NEVER = 1_000_000
_SET_ASIDE_AFTER = 4
"""Collections of the middle generation, each of which leaves 20,000 objects at most. Looking at all that is left by
so many takes some 20 ms."""
_LOOK_EVERY = 1.0
_FULL_EVERY = 60.0


class Collector:
    """`idle` says whether nobody would notice. Use `start` once, when everything that lives for ever is made."""

    def __init__(self, idle: Callable[[], bool]) -> None:
        self._idle = idle
        self._full_at = time.monotonic()

    async def run(self) -> None:
        """Collect until cancelled."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
        kept = gc.get_freeze_count()
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            if gc.get_count()[2] >= _SET_ASIDE_AFTER:
                gc.collect()
                gc.freeze()
            grown = gc.get_freeze_count() != kept
            if grown and self._idle() and time.monotonic() - self._full_at > _FULL_EVERY:
                self._collect_all()
                kept = gc.get_freeze_count()

    def _collect_all(self) -> None:
        begun = time.monotonic()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        self._full_at = time.monotonic()
        log.debug("full collection: %d objects freed in %.0f ms", found, (self._full_at - begun) * 1e3)

"""When the garbage collector looks at everything: not while agents wait for tokens.

CPython looks at all objects whenever they have grown by a quarter. With a thousand streams those are half a
million, and the event loop stands still for as many microseconds, every few seconds. Here only young objects are
collected by themselves, and what survives that once is set aside (`gc.freeze`). Everything is looked at when no
engine call is in flight, as at every pause; or, where that never happens, once the objects have doubled. Most
objects are freed by their reference count, which is no matter of the collector. One event loop.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

_YOUNG = 10_000
"""Objects that live, beyond those of the last time, when the young ones are looked at."""
_LOOK_EVERY = 0.5
_FULL_EVERY = 300.0
_OVERDUE = 600.0
_MANY = 1_000_000


async def collect_garbage(
    idle: Callable[[], bool], *, look_every: float = _LOOK_EVERY, full_every: float = _FULL_EVERY
) -> None:
    """Collect until cancelled. `idle`: nobody would notice a stop of half a second. It is asked every `look_every`
    seconds and followed every `full_every` seconds at most. Begin when all that lives for ever is made."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_set_aside)
    gc.set_threshold(_YOUNG)
    try:
        await _look_at_everything(idle, look_every, full_every)
    finally:
        gc.callbacks.remove(_set_aside)
        gc.set_threshold(*before)


async def _look_at_everything(idle: Callable[[], bool], look_every: float, full_every: float) -> None:
    kept, at, counted, was_idle = gc.get_freeze_count(), time.monotonic(), time.monotonic(), False
    while True:
        await asyncio.sleep(look_every)
        now, is_idle = time.monotonic(), idle()
        due = is_idle and was_idle and now - at > full_every
        was_idle = is_idle
        if not due and now - counted > _OVERDUE:
            counted = now
            due = gc.get_freeze_count() > 2 * kept + _MANY  # counting takes as long as a young collection
        if due:
            gc.unfreeze()
            found = gc.collect()
            kept = gc.get_freeze_count()
            at = counted = time.monotonic()
            log.debug("full collection: %d objects freed, %d left, %.0f ms", found, kept, (at - now) * 1e3)


def _set_aside(phase: str, _: Mapping[str, int]) -> None:
    if phase == "stop":
        gc.freeze()

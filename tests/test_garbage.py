"""The collector looks at everything only when nobody waits, and at young objects always."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from sidecar.garbage import collect_garbage
from tests.support.waiting import until


class Ring:
    """A cycle: no reference count frees it."""

    def __init__(self) -> None:
        self.me: Ring | None = self


class Desk:
    """Whether somebody waits."""

    idle = False


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk, before = Desk(), gc.get_threshold()
    running = asyncio.ensure_future(collect_garbage(lambda: desk.idle, look_every=0.01, full_every=0.02))
    await until(lambda: gc.get_threshold() != before, "the collector")
    yield desk
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    gc.unfreeze()
    assert gc.get_threshold() == before


def drop(ring: Ring | None) -> weakref.ref[Ring]:
    assert ring is not None
    return weakref.ref(ring)


async def test_what_survives_once_is_set_aside_until_nobody_waits(desk: Desk) -> None:
    ring: Ring | None = Ring()
    gc.collect(0)
    gone = drop(ring)
    ring = None
    gc.collect()
    await asyncio.sleep(0.1)  # looks were taken meanwhile
    assert gone() is not None, "it was looked at although somebody waits"
    desk.idle = True
    await until(lambda: gone() is None, "a full collection")


async def test_young_garbage_is_freed_while_somebody_waits(desk: Desk) -> None:
    gone = drop(Ring())
    gc.collect(0)
    assert gone() is None


async def test_growth_alone_never_looks_at_everything(desk: Desk) -> None:
    """Python's own rule: a full collection when the objects have grown by a quarter."""
    generations: list[int] = []

    def note(phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            generations.append(details["generation"])

    gc.callbacks.append(note)
    try:
        kept = [[number] for number in range(300_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 300_000
    assert len(generations) > 5
    looked_at = gc.get_freeze_count()
    assert looked_at > 200_000
    assert generations.count(2) == 0

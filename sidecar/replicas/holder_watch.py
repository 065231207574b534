"""Notices that another sidecar's lease is over while calls wait for its answer.

A process that is stopped keeps its connections and says nothing; only its lease tells. One query per lease and
holder, however many calls wait. One event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sidecar.store.protocol import StoreError

_SHORTEST = 0.05
_AGAIN = 1.0
"""Seconds after which a store that did not answer is asked again."""


@dataclass(slots=True)
class _Watched:
    over: asyncio.Event
    task: asyncio.Task[None]
    calls: int = 0


class HolderWatch:
    """`seconds_left` is what a sidecar's lease has left, by its id; it may raise `StoreError`."""

    def __init__(self, seconds_left: Callable[[str], Awaitable[float]]) -> None:
        self._seconds_left = seconds_left
        self._watched: dict[str, _Watched] = {}

    @contextmanager
    def of(self, sidecar_id: str) -> Iterator[asyncio.Event]:
        """Within the block the event is set as soon as the sidecar's lease is over."""
        watched = self._watched.get(sidecar_id)
        if watched is None:
            over = asyncio.Event()
            task = asyncio.get_running_loop().create_task(self._watch(sidecar_id, over))
            watched = self._watched[sidecar_id] = _Watched(over, task)
        watched.calls += 1
        try:
            yield watched.over
        finally:
            watched.calls -= 1
            if watched.calls == 0:
                watched.task.cancel()
                if self._watched.get(sidecar_id) is watched:
                    del self._watched[sidecar_id]

    async def _watch(self, sidecar_id: str, over: asyncio.Event) -> None:
        while True:
            try:
                left = await self._seconds_left(sidecar_id)
            except StoreError:
                await asyncio.sleep(_AGAIN)
                continue
            if left <= 0:
                over.set()
                self._watched.pop(sidecar_id, None)  # another life of that sidecar would be another id
                return
            await asyncio.sleep(max(_SHORTEST, left))

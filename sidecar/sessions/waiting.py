"""Steps that the store has as detached and that no run owns: the process that ran them is gone, or could not store
how they ended. One event loop.

Each waits for the retry of its call until its window ends, which began when it was detached, whichever process that
was; then it is recorded as aborted, like a step that waited here all the time (`step_run.py`). None is forgotten
before the store has its end: a write that fails is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sidecar.sessions.step_run import StepAborted
from sidecar.store.protocol import StoreError
from sidecar.tito.records import StepRecord

log = logging.getLogger(__name__)

_AGAIN = 5.0
"""Seconds after which an end that could not be stored is stored again."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    record: StepRecord
    blobs: Mapping[bytes, bytes]
    timer: asyncio.Task[None]


Commit = Callable[[StepRecord, Mapping[bytes, bytes]], Awaitable[None]]
"""Stores a final record with its blobs and adds it to the trajectory. Passed to each call instead of being kept: it
is the session's, which has to be free when it ends."""


class WaitingSteps:
    """Those of one session."""

    def __init__(self) -> None:
        self._steps: dict[str, _Waiting] = {}
        self._ending = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[StepRecord]:
        """Oldest first."""
        return iter([waiting.record for waiting in self._steps.values()])

    async def restore(self, records: Sequence[StepRecord], window: float, commit: Commit) -> None:
        """Take over what the store has of an earlier process's detached steps; `window` is how many seconds one
        waits in all. Raises `StoreError` if those whose window is over cannot be stored as aborted."""
        now = time.time()
        # a clock that was set back, or another machine's, makes no window longer
        left = [min(window, record.created_at + window - now) for record in records]
        for record, seconds in zip(records, left, strict=True):
            if seconds <= 0:
                await commit(replace(record, state="aborted"), {})
        for record, seconds in zip(records, left, strict=True):
            if seconds > 0:
                self._add(record, {}, seconds, commit)

    def leave(self, record: StepRecord, blobs: Mapping[bytes, bytes], commit: Commit) -> None:
        """A step whose end could not be stored just now."""
        self._add(record, blobs, _AGAIN, commit)

    def of_body(self, body_hash: bytes) -> list[StepRecord]:
        """The steps that wait for a retry with that body, oldest first."""
        return [record for record in self if record.body_hash == body_hash]

    def take(self, step_id: str) -> None:
        """The retry of a step came: it waits no more."""
        self._steps.pop(step_id).timer.cancel()

    async def end(self, records: Sequence[StepRecord], commit: Commit) -> None:
        """Record these steps as aborted, now. Raises `StoreError`; what it hit waits on."""
        for record in records:
            await self._end(record.step_id, commit)
        async with self._ending:  # one that its own timer ends is stored, too
            pass

    def stop(self) -> None:
        """Forget them here: the session is discarded, or leaves memory; the store has them."""
        for waiting in self._steps.values():
            waiting.timer.cancel()
        self._steps.clear()

    def _add(self, record: StepRecord, blobs: Mapping[bytes, bytes], seconds: float, commit: Commit) -> None:
        timer = asyncio.get_running_loop().create_task(
            self._end_later(record.step_id, seconds, commit), name=f"window of step {record.step_id}"
        )
        self._steps[record.step_id] = _Waiting(record, blobs, timer)

    async def _end_later(self, step_id: str, seconds: float, commit: Commit) -> None:
        await asyncio.sleep(seconds)
        while step_id in self._steps:
            try:
                await self._end(step_id, commit)
            except StepAborted:  # its session is being discarded
                return
            except StoreError as error:
                log.warning("the end of step %s is not stored yet: %s", step_id, error)
                await asyncio.sleep(_AGAIN)

    async def _end(self, step_id: str, commit: Commit) -> None:
        async with self._ending:
            waiting = self._steps.pop(step_id, None)  # from here on no retry finds it
            if waiting is None:
                return
            try:
                await commit(replace(waiting.record, state="aborted"), waiting.blobs)
            except BaseException:
                self._steps[step_id] = waiting
                raise
            if waiting.timer is not asyncio.current_task():
                waiting.timer.cancel()

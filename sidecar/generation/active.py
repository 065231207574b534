"""The engine calls in flight: who they belong to, how to end them, and how to wait for their end.

An abort is asked of the workers and repeated, because a rid that the engine does not know yet is a silent no-op
there. What cannot be aborted so has its connection cut, which aborts as well and loses no ids: they were taken as
they came, and the call goes on from them. One event loop; a worker that hangs holds up nobody but its own calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from sidecar.generation.gate import Scopes
from sidecar.generation.signal import Signal
from sidecar.generation.workers import Workers

_REPEAT_ABORT = 0.2
_CUT_AFTER = 2.0
_LOOK_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class _Call:
    scopes: Scopes
    lifeline: asyncio.Timeout
    """Expiring it cuts the connection."""


class ActiveCalls:
    """Engine calls by rid, from before they are sent until their last byte."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._calls: dict[str, _Call] = {}
        self._ended = Signal()
        self._asking: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def add(self, rid: str, scopes: Scopes, lifeline: asyncio.Timeout) -> None:
        """A call is about to be sent."""
        self._calls[rid] = _Call(scopes, lifeline)

    def remove(self, rid: str) -> None:
        """A call has ended, however it did."""
        if self._calls.pop(rid, None) is not None:
            self._ended.notify()

    def of(self, scope: str) -> list[str]:
        """The rids of a scope's calls, oldest first."""
        return [rid for rid, call in self._calls.items() if scope in call.scopes]

    def still(self, rids: Iterable[str]) -> list[str]:
        """Those of `rids` that are still in flight."""
        return [rid for rid in rids if rid in self._calls]

    async def wait_ended(self, rids: list[str], seconds: float, wanted: Callable[[], bool]) -> None:
        """Until these calls have ended by themselves, for `seconds` at most, and only while `wanted()`."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self.still(rids) and wanted():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            await self._wait(rids, min(_LOOK_EVERY, left))

    async def abort(self, rids: list[str], seconds: float, wanted: Callable[[], bool]) -> None:
        """Abort these calls until they have ended, for `seconds` at most, and only while `wanted()`.

        A call that does not react within two seconds (or half of `seconds`) is cut: one that the engine holds at a
        pause of its own is marked as aborted there and never is (SGLang 0.5.23), and a worker may hang."""
        now = started = asyncio.get_running_loop().time()
        cut_at = started + min(_CUT_AFTER, seconds / 2)
        while (open_rids := self.still(rids)) and wanted():
            for rid in open_rids:
                self._ask(rid)
            left = started + seconds - now
            if left <= 0:
                return
            await self._wait(open_rids, min(_REPEAT_ABORT, left))
            now = asyncio.get_running_loop().time()
            if now >= cut_at:
                for rid in self.still(open_rids):
                    self._cut(rid)

    def _ask(self, rid: str) -> None:
        """Ask the workers to abort a call, in the background and once at a time."""
        if rid in self._asking:
            return
        task = asyncio.get_running_loop().create_task(self._abort(rid))
        self._asking[rid] = task
        task.add_done_callback(lambda _: self._asking.pop(rid, None))

    async def _abort(self, rid: str) -> None:
        if not await self._workers.abort(rid):
            self._cut(rid)

    def _cut(self, rid: str) -> None:
        call = self._calls.get(rid)
        if call is not None and not call.lifeline.expired():
            call.lifeline.reschedule(asyncio.get_running_loop().time())

    async def _wait(self, rids: list[str], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.still(rids):
                    await self._ended.wait()

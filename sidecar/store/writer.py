"""The one writer of a process: writes that wait together are committed together.

Promise: a caller's future resolves after COMMIT; a write that cannot be stored fails its own caller only; the
queue is bounded and beyond it callers get `StoreBusy`; `close` writes what is queued. One task writes, callers
live in the same event loop, and a caller that is cancelled leaves its write in the queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from sidecar.store.backend import Fault
from sidecar.store.protocol import LeaseLapsed, StoreBusy, StoreError
from sidecar.store.write_totals import WriteTotals
from sidecar.store.writes import Write

log = logging.getLogger(__name__)

_STOPPED = Fault("the store's writer was stopped", environmental=False)


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Bounds of queue and transaction, in writes, bytes and seconds."""

    batch_writes: int = 256
    batch_bytes: int = 8 << 20
    queue_writes: int = 4096
    queue_bytes: int = 64 << 20
    """A write that is larger than this is taken when nothing else is queued."""
    defer_seconds: float = 1.0
    """How long posted writes wait for another transaction to ride along in."""
    probe_seconds: float = 1.0
    """How often a store that cannot write is tried again."""


@dataclass(slots=True)
class _Queued:
    write: Write
    future: asyncio.Future[Write] | None
    """None for a posted write, whose caller does not wait."""


class GroupedWriter:
    """Takes writes from many tasks and commits them in batches."""

    def __init__(
        self,
        commit: Callable[[Sequence[Write]], Awaitable[None]],
        probe: Callable[[], Awaitable[None]],
        describe: Callable[[BaseException], Fault],
        limits: WriterLimits,
    ) -> None:
        """`commit` writes a batch in one transaction or raises and writes nothing; `probe` makes a trial write;
        `describe` reads what either raised."""
        self._commit, self._probe, self._describe, self._limits = commit, probe, describe, limits
        self._queue: deque[_Queued] = deque()
        self._awaited = 0
        self._awaited_bytes = 0
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._failure: str | None = None
        self._totals = WriteTotals()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write, in a task of the running loop."""
        self._task = asyncio.create_task(self._run(), name="store-writer")

    def failure(self) -> str | None:
        """Why nothing can be written at present, or None."""
        return "the store is closed" if self._closing else self._failure

    def totals(self) -> WriteTotals:
        """What was written since the start, as of now."""
        return replace(self._totals, waiting=len(self._queue))

    def submit(self, write: Write) -> asyncio.Future[Write]:
        """Queue a write; the future resolves after its commit or raises `StoreError`. Raises `StoreBusy`."""
        if self._closing:
            raise StoreError(f"{write.what}: the store is closed")
        limits, size = self._limits, self._awaited_bytes + write.size
        if self._awaited >= limits.queue_writes or (self._awaited and size > limits.queue_bytes):
            raise StoreBusy(
                f"{write.what}: {self._awaited} writes of {self._awaited_bytes} bytes wait for the store "
                f"(limits {limits.queue_writes} and {limits.queue_bytes}); try again, or use a faster disk"
            )
        self._awaited += 1
        self._awaited_bytes = size
        future: asyncio.Future[Write] = asyncio.get_running_loop().create_future()
        self._queue.append(_Queued(write, future))
        self._wake.set()
        return future

    def post(self, write: Write) -> None:
        """Queue a write nobody waits for: it rides along with the next batch, or makes one after a short delay.

        Never raises. Kept and tried again while the store cannot write."""
        if self._closing:
            log.warning("%s was not stored: the store is closed", write.what)
            return
        self._queue.append(_Queued(write, None))
        self._wake_after(self._limits.defer_seconds)

    async def close(self) -> None:
        """Write what is queued and stop. Safe to call again."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _run(self) -> None:
        try:
            while not (self._closing and not self._queue):
                await self._wait()
                # Callers that the last commit woke run now, so that their next writes share a transaction.
                await asyncio.sleep(0)
                if batch := self._take():
                    await self._write_or_stop(batch)
                elif self._failure is not None and not self._closing:
                    await self._try_again()
                self._plan_next()
        finally:
            self._stop()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(None if self._failure is None else self._limits.probe_seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _plan_next(self) -> None:
        if self._awaited or self._closing:
            self._wake.set()
        elif self._queue:
            self._wake_after(self._limits.probe_seconds if self._failure else self._limits.defer_seconds)

    def _wake_after(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake.set()

    def _take(self) -> list[_Queued]:
        batch: list[_Queued] = []
        size, queue, limits = 0, self._queue, self._limits
        while queue and len(batch) < limits.batch_writes:
            write = queue[0].write
            if batch and size + write.size > limits.batch_bytes:
                break
            size += write.size
            item = queue.popleft()
            batch.append(item)
            if item.future is not None:
                self._awaited -= 1
                self._awaited_bytes -= write.size
        return batch

    async def _write_or_stop(self, batch: list[_Queued]) -> None:
        try:
            await self._write(batch)
        except asyncio.CancelledError:
            self._fail(batch, _STOPPED)
            raise

    async def _write(self, batch: list[_Queued]) -> None:
        """Commit a batch; if that fails, each of its writes alone."""
        fault = await self._commit_or_fault(batch)
        if fault is None:
            return
        again: list[_Queued] = []
        if len(batch) > 1 and fault.worth_splitting:
            for at, item in enumerate(batch):
                fault = await self._commit_or_fault([item])
                if fault is None:
                    continue
                if not fault.worth_splitting:
                    again += self._fail(batch[at:], fault)
                    break
                again += self._fail([item], fault)
        else:
            again = self._fail(batch, fault)
        self._queue.extendleft(reversed(again))

    async def _commit_or_fault(self, batch: list[_Queued]) -> Fault | None:
        totals, began = self._totals, time.monotonic()
        try:
            await self._commit([item.write for item in batch])
        except Exception as error:
            totals.failed += 1
            return self._describe(error)
        totals.seconds += time.monotonic() - began
        totals.commits += 1
        totals.writes += sum(item.write.refused is None for item in batch)
        for item in batch:
            if item.write.refused is not None:
                self._refuse(item, item.write.refused)
            elif item.future is not None:
                # Posted marks change rows in place and may succeed on a full disk: they prove nothing.
                self._recovered()
                if not item.future.done():
                    item.future.set_result(item.write)
        return None

    def _refuse(self, item: _Queued, reason: StoreError) -> None:
        """The batch is committed, but without this one."""
        if item.future is None and isinstance(reason, LeaseLapsed) and not self._closing:
            self._queue.append(item)
        elif item.future is None:
            log.warning("%s was not stored: %s", item.write.what, reason)
        elif not item.future.done():
            item.future.set_exception(reason)

    def _fail(self, batch: list[_Queued], fault: Fault) -> list[_Queued]:
        """Tell the callers; the posted writes that are worth another try, in order."""
        if fault.environmental:
            if self._failure is None:
                log.error("the store cannot write: %s", fault.message)
            self._failure = fault.message
        again: list[_Queued] = []
        for item in batch:
            if item.future is not None:
                if not item.future.done():
                    item.future.set_exception(StoreError(f"{item.write.what}: {fault.message}"))
            elif fault.environmental and not self._closing:
                again.append(item)
            else:
                log.warning("%s was not stored: %s", item.write.what, fault.message)
        return again

    async def _try_again(self) -> None:
        try:
            await self._probe()
        except Exception as error:
            self._failure = self._describe(error).message
        else:
            self._recovered()

    def _recovered(self) -> None:
        if self._failure is not None:
            log.info("the store writes again")
            self._failure = None

    def _stop(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        while self._queue:
            self._fail([self._queue.popleft()], _STOPPED)

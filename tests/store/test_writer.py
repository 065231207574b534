"""The grouped writer by itself, on a commit function of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from sidecar.store.backend import Fault
from sidecar.store.protocol import StoreError
from sidecar.store.writer import GroupedWriter, WriterLimits
from sidecar.store.writes import Write

DOWN = Fault("the disk is gone", environmental=True)
LOCKED = Fault("somebody holds the lock", environmental=True, worth_splitting=False)
BAD_ROW = Fault("bad row", environmental=False)


class Disk:
    """Commits to a list; raises the fault of the moment, or that of a write named `bad`."""

    def __init__(self) -> None:
        self.tried: list[list[str]] = []
        self.stored: list[str] = []
        self.fault: Fault | None = None
        self.reached = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.probed = asyncio.Event()

    async def commit(self, batch: Sequence[Write]) -> None:
        names = [write.what for write in batch]
        self.tried.append(names)
        self.reached.set()
        await self.gate.wait()
        if self.fault is not None:
            raise FaultError(self.fault)
        if "bad" in names:
            raise FaultError(BAD_ROW)
        self.stored += names

    async def probe(self) -> None:
        self.probed.set()
        if self.fault is not None:
            raise FaultError(self.fault)

    def writer(self, **limits: float) -> GroupedWriter:
        fast = {"probe_seconds": 0.01, "defer_seconds": 0.01} | limits
        writer = GroupedWriter(self.commit, self.probe, lambda error: error.args[0], WriterLimits(**fast))  # type: ignore[arg-type]
        writer.start()
        return writer


class FaultError(Exception):
    """Carries a fault to the writer."""


def write(name: str, size: int = 1) -> Write:
    return Write(name, (), size)


async def test_a_batch_is_bounded_in_writes_and_in_bytes() -> None:
    disk = Disk()
    writer = disk.writer(batch_writes=3, batch_bytes=100)
    sizes = {"a": 1, "b": 1, "c": 1, "d": 60, "e": 60, "f": 500, "g": 1}
    await asyncio.gather(*(writer.submit(write(name, size)) for name, size in sizes.items()))
    assert disk.tried == [["a", "b", "c"], ["d"], ["e"], ["f"], ["g"]]
    await writer.close()


async def test_a_caller_woken_by_a_commit_shares_the_next_one() -> None:
    disk = Disk()
    writer = disk.writer()

    async def two_steps() -> None:
        await writer.submit(write("first"))
        await writer.submit(write("second"))

    disk.gate.clear()
    caller = asyncio.create_task(two_steps())
    await asyncio.wait_for(disk.reached.wait(), 10)
    waiting = writer.submit(write("queued meanwhile"))
    disk.gate.set()
    await asyncio.gather(caller, waiting)
    assert disk.tried == [["first"], ["queued meanwhile", "second"]]
    await writer.close()


async def test_a_failed_batch_is_tried_write_by_write() -> None:
    disk = Disk()
    writer = disk.writer()
    futures = [writer.submit(write(name)) for name in ("a", "bad", "c")]
    done = await asyncio.gather(*futures, return_exceptions=True)
    assert disk.tried == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]
    assert str(done[1]) == "bad: bad row"
    assert disk.stored == ["a", "c"]
    assert writer.failure() is None
    await writer.close()


async def test_a_batch_that_waited_for_a_lock_is_not_tried_again() -> None:
    disk = Disk()
    writer = disk.writer()
    disk.fault = LOCKED
    done = await asyncio.gather(*(writer.submit(write(name)) for name in "abc"), return_exceptions=True)
    assert all(isinstance(outcome, StoreError) for outcome in done)
    assert disk.tried == [["a", "b", "c"]]
    assert writer.failure() == LOCKED.message
    await writer.close()


async def test_a_trial_write_clears_the_failure() -> None:
    disk = Disk()
    writer = disk.writer()
    disk.fault = DOWN
    with pytest.raises(StoreError, match="a: the disk is gone"):
        await writer.submit(write("a"))
    await asyncio.wait_for(disk.probed.wait(), 10)
    assert writer.failure() == DOWN.message
    disk.fault = None
    disk.probed.clear()
    await asyncio.wait_for(disk.probed.wait(), 10)
    await asyncio.sleep(0)
    assert writer.failure() is None
    await writer.close()


async def test_a_later_success_clears_the_failure_at_once() -> None:
    disk = Disk()
    writer = disk.writer(probe_seconds=3600)
    disk.fault = DOWN
    with pytest.raises(StoreError):
        await writer.submit(write("a"))
    disk.fault = None
    await writer.submit(write("b"))
    assert writer.failure() is None
    await writer.close()


async def test_a_posted_write_makes_a_batch_after_a_delay() -> None:
    disk = Disk()
    writer = disk.writer()
    writer.post(write("mark"))
    await asyncio.wait_for(disk.reached.wait(), 10)
    await writer.close()
    assert disk.stored == ["mark"]


async def test_posted_writes_survive_a_failure_in_their_order() -> None:
    disk = Disk()
    writer = disk.writer()
    disk.fault = DOWN
    writer.post(write("first"))
    writer.post(write("second"))
    await asyncio.wait_for(disk.reached.wait(), 10)
    writer.post(write("third"))
    with pytest.raises(StoreError):
        await writer.submit(write("awaited"))
    disk.fault = None
    await writer.close()
    assert disk.stored == ["first", "second", "third"]


async def test_a_posted_write_that_is_itself_bad_is_dropped_with_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk()
    writer = disk.writer()
    writer.post(write("bad"))
    await writer.close()
    assert disk.stored == []
    assert "bad was not stored: bad row" in caplog.text


async def test_close_ends_although_the_disk_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    writer = disk.writer()
    disk.fault = DOWN
    future = writer.submit(write("a"))
    writer.post(write("mark"))
    await asyncio.wait_for(writer.close(), 10)
    with pytest.raises(StoreError, match="the disk is gone"):
        await future
    assert "mark was not stored" in caplog.text


async def test_nobody_waits_for_ever_when_the_writer_is_cancelled() -> None:
    disk = Disk()
    disk.gate.clear()
    writer = disk.writer(batch_writes=1)
    futures = [writer.submit(write(name)) for name in "ab"]
    await asyncio.wait_for(disk.reached.wait(), 10)
    assert writer._task is not None
    writer._task.cancel()
    done = await asyncio.gather(*futures, return_exceptions=True)
    assert all("stopped" in str(outcome) for outcome in done)
    with pytest.raises(StoreError, match="closed"):
        writer.submit(write("c"))

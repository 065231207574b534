"""Clean-up runs to its end although its caller is cancelled, and the cancellation is not lost."""

from __future__ import annotations

import asyncio

import pytest

from trainer_hooks.uninterrupted import uninterrupted


async def test_a_result_and_an_error_come_through() -> None:
    async def value() -> int:
        return 5

    async def broken() -> None:
        raise KeyError("x")

    assert await uninterrupted(value()) == 5
    with pytest.raises(KeyError):
        await uninterrupted(broken())


@pytest.mark.parametrize("fails", [False, True])
async def test_however_often_the_caller_is_cancelled_the_work_ends_first(fails: bool) -> None:
    started, go, done = asyncio.Event(), asyncio.Event(), False

    async def work() -> None:
        nonlocal done
        started.set()
        await go.wait()
        done = True
        if fails:
            raise KeyError("x")

    caller = asyncio.create_task(uninterrupted(work()))
    await started.wait()
    for _ in range(3):
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()
    go.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await caller
    assert done
    assert isinstance(caught.value.__cause__, KeyError) == fails

"""The first calls of a session that come at once are of one session, in one epoch."""

from __future__ import annotations

import asyncio

from sidecar.sessions.registry import Registry
from tests.fake_sglang import Reply
from tests.support.chat import ask, completion
from tests.support.running import Running


async def test_one_that_comes_between_look_up_and_creation_does_not_take_the_session(sidecar: Running) -> None:
    registry: Registry = sidecar.sidecar.registry

    async def just_after_the_look_up() -> object:
        while "s" not in registry._loading:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        while "s" in registry._loading and "s" not in registry._sessions:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return await registry.for_call("s", None)

    late = [asyncio.create_task(just_after_the_look_up()) for _ in range(3)]
    first = await registry.for_call("s", None)
    assert all(session is first for session in await asyncio.gather(*late))
    await first.flush()
    assert first.store.lost is None


async def test_many_at_once_are_all_answered(sidecar: Running) -> None:
    sidecar.engine.replies.extend(Reply(text=f"{number}") for number in range(12))
    for response in await asyncio.gather(*(sidecar.chat("s", ask(f"I am {n}")) for n in range(12))):
        completion(response)
    assert len(await sidecar.segments("s")) == 12

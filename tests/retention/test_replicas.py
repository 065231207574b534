"""Several sidecars on one store sweep it: an open session is its owner's, and nothing expires twice."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from tests.fake_sglang import FakeSGLang, Reply
from tests.retention.conftest import Sweeper, at_rest
from tests.support.chat import ask, completion
from tests.support.running import Running, running_sidecar


async def call(running: Running, session: str) -> None:
    running.engine.replies.append(Reply(text="Yes."))
    completion(await running.chat(session, ask()))
    await at_rest(running, session)


async def test_what_one_sidecar_has_open_no_other_lets_expire(engine: FakeSGLang, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tito.db"
    async with running_sidecar(engine, tmp_path / "b", store=store) as second:
        sweeper = Sweeper(second)
        async with running_sidecar(engine, tmp_path / "a", store=store) as first:
            await call(first, "s")
            await sweeper.pass_time(hours=25)
            assert sweeper.retention.totals.expired == 0
            assert (await first.view("s"))["state"] == "open"
            await call(first, "s")
        await sweeper.pass_time(hours=0)
        assert sweeper.retention.totals.expired == 1, "its owner is gone"
        assert (await second.chat("s", ask())).status_code == 409


async def test_sweeps_at_once_expire_each_session_once(engine: FakeSGLang, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tito.db"
    async with AsyncExitStack() as stack:
        every = [
            await stack.enter_async_context(running_sidecar(engine, tmp_path / name, store=store)) for name in "abc"
        ]
        for number in range(12):
            await call(every[0], f"s{number}")
            await every[0].finalize(f"s{number}")
        sweepers = [Sweeper(one) for one in every]
        await asyncio.gather(*(sweeper.pass_time(hours=25) for sweeper in sweepers))
        assert sum(sweeper.retention.totals.expired_unread for sweeper in sweepers) == 12
        assert (await sweepers[0].store.counts())["steps"] == 0
        stats = (await every[1].control.get("/trajectory/stats")).json()
        assert stats["retention"]["tombstones"] == {"expired": 12, "expired_unread": 12}

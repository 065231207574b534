"""Pause and resume when a router stands before the engine: aborts, versions and readiness are the workers'."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_sglang import FakeSGLang, Reply
from tests.fake_sglang.router import FakeRouter, SilentServer
from tests.support.chat import Held, ask, text_of
from tests.support.running import Running, engine_for, running_sidecar

NOWHERE = "http://127.0.0.1:9"


@dataclass
class Fleet:
    """A sidecar, its router, and two workers; sessions are named after where the router sends them."""

    running: Running
    router: FakeRouter
    engines: list[FakeSGLang]

    def session(self, engine: FakeSGLang, start: int = 0) -> str:
        """A session that the router sends to that worker."""
        return next(f"s{n}" for n in range(start, start + 100) if self.router.worker_of(f"s{n}") == engine.url)

    async def pause(self, status: int = 200, **fields: Any) -> dict[str, Any]:
        return await self.running.post("/v1/rollout/pause", fields, status)

    async def resume(self, status: int = 200, **fields: Any) -> dict[str, Any]:
        return await self.running.post("/v1/rollout/resume", fields, status)


@asynccontextmanager
async def fleet(
    qwen3_dir: Path, tmp_path: Path, listed: list[str] | None = None, **options: Any
) -> AsyncIterator[Fleet]:
    settings = options.pop("settings", {})
    router_options = {name: options.pop(name) for name in ("names_worker", "healthy") if name in options}
    async with AsyncExitStack() as stack:
        options.setdefault("weight_version", "1")
        engines = [await stack.enter_async_context(engine_for(qwen3_dir, **options)) for _ in range(2)]
        urls = [engine.url for engine in engines]
        router = await stack.enter_async_context(FakeRouter(*urls, listed=listed, **router_options))
        named: Any = type("Url", (), {"url": router.url})  # all that a sidecar needs of an engine
        running = await stack.enter_async_context(running_sidecar(named, tmp_path / "state", **settings))
        yield Fleet(running, router, engines)


async def both_at_hold(all_: Fleet) -> tuple[list[Held], list[asyncio.Task[httpx.Response]]]:
    helds, calls = [], []
    for engine in all_.engines:
        held = Held()
        engine.replies.append(held.reply())
        calls.append(asyncio.ensure_future(all_.running.chat(all_.session(engine), ask())))
        await held.reached(engine)
        helds.append(held)
    return helds, calls


async def test_a_pause_aborts_at_every_worker_and_all_go_on(qwen3_dir: Path, tmp_path: Path) -> None:
    async with fleet(qwen3_dir, tmp_path) as all_:
        helds, calls = await both_at_hold(all_)
        paused = await all_.pause()
        assert (paused["quiesced"], paused["suspended"], paused["version"]) == (True, 2, "1")
        assert [engine.requests[0].outcome for engine in all_.engines] == ["aborted", "aborted"]
        for engine in all_.engines:
            engine.set_weight_version("2")
        resumed = await all_.resume(pause_id=paused["pause_id"], version="2")
        assert (resumed["status"], resumed["version"]) == ("resumed", "2")
        for engine, held, call in zip(all_.engines, helds, calls, strict=True):
            assert text_of(await call) == held.text
            engine.assert_i1()
            [segment] = await all_.running.segments(all_.session(engine))
            start = len(engine.requests[0].input_ids)
            assert segment["full_versions"][start:] == ["1"] * 3 + ["2"] * (len(segment["tokens"]) - start - 3)


async def test_a_worker_that_joined_after_the_start_is_aborted_at_too(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir, weight_version="1") as third, fleet(qwen3_dir, tmp_path) as all_:
        all_.router.workers.append(third.url)
        all_.router.listed.append(third.url)
        held = Held()
        third.replies.append(held.reply())
        call = asyncio.ensure_future(all_.running.chat(all_.session(third), ask()))
        await held.reached(third)
        assert (await all_.pause())["quiesced"]
        assert third.requests[0].outcome == "aborted"
        await all_.resume()
        assert text_of(await call) == held.text


async def test_resume_wants_all_workers_to_have_the_same_weights(qwen3_dir: Path, tmp_path: Path) -> None:
    async with fleet(qwen3_dir, tmp_path) as all_:
        _, calls = await both_at_hold(all_)
        paused = await all_.pause()
        first, second = all_.engines
        first.set_weight_version("2")
        error = (await all_.resume(503, pause_id=paused["pause_id"]))["error"]
        assert error["code"] == "backend_not_ready"
        assert f"{first.url} has 2, {second.url} has 1" in error["message"]
        state = (await all_.running.control.get("/v1/rollout/pause_state")).json()
        assert (state["paused"], state["rollout_epoch"]) == (True, 0)
        assert {one["url"]: one["weight_version"] for one in state["workers"]} == {first.url: "2", second.url: "1"}
        assert not any(call.done() for call in calls)
        second.set_weight_version("2")
        assert (await all_.resume(pause_id=paused["pause_id"]))["status"] == "resumed"
        await asyncio.gather(*calls)


async def test_resume_names_the_worker_that_does_not_answer(qwen3_dir: Path, tmp_path: Path) -> None:
    async with fleet(qwen3_dir, tmp_path) as all_:
        paused = await all_.pause()
        first, second = all_.engines
        await second.down()
        error = (await all_.resume(503, pause_id=paused["pause_id"]))["error"]
        assert error["code"] == "backend_not_ready"
        assert second.url in error["message"]
        assert first.url not in error["message"]
        ready = (await all_.running.control.get("/ready")).json()
        assert (ready["ready"], ready["engine"]) == (True, "degraded")
        await second.up()
        assert (await all_.resume(pause_id=paused["pause_id"]))["status"] == "resumed"


async def test_capabilities_show_the_workers(qwen3_dir: Path, tmp_path: Path) -> None:
    async with fleet(qwen3_dir, tmp_path) as all_:
        engine = (await all_.running.control.get("/integration/capabilities")).json()["engine"]
        assert [one["url"] for one in engine["workers"]] == [one.url for one in all_.engines]
        assert {one["weight_version"] for one in engine["workers"]} == {"1"}
        assert engine["version"] == "0.5.23"


@pytest.mark.parametrize("incremental", [False, True], ids=["cumulative", "incremental"])
async def test_where_no_worker_can_be_reached_dropping_the_connection_aborts_and_loses_no_ids(
    qwen3_dir: Path, tmp_path: Path, incremental: bool
) -> None:
    settings = {"context_window": 4096}
    async with fleet(
        qwen3_dir, tmp_path, listed=[NOWHERE], settings=settings, incremental=incremental, names_worker=False
    ) as all_:
        helds, calls = await both_at_hold(all_)
        paused = await all_.pause()
        assert (paused["quiesced"], paused["suspended"]) == (True, 2)
        for engine in all_.engines:
            await engine.wait_idle()
            assert engine.requests[0].outcome == "disconnected"
            assert not engine.recorder.calls_to("/abort_request")
        assert (await all_.resume(pause_id=paused["pause_id"]))["status"] == "resumed"
        for engine, held, call in zip(all_.engines, helds, calls, strict=True):
            assert text_of(await call) == held.text
            first, second = engine.requests
            assert second.input_ids == first.input_ids + first.output_ids[: held.after]


async def test_a_worker_that_hangs_stretches_no_pause(qwen3_dir: Path, tmp_path: Path) -> None:
    async with SilentServer() as silent, fleet(qwen3_dir, tmp_path) as all_:
        all_.router.listed.append(silent.url)
        _, calls = await both_at_hold(all_)
        begun = time.monotonic()
        paused = await all_.pause(timeout_seconds=5)
        assert paused["quiesced"]
        assert time.monotonic() - begun < 5
        error = (await all_.resume(503))["error"]
        assert silent.url in error["message"]
        assert all(engine.url not in error["message"] for engine in all_.engines)
        all_.router.listed.remove(silent.url)  # the router has noticed
        await all_.resume()
        await asyncio.gather(*calls)


async def test_a_call_at_a_worker_that_hangs_is_cut_within_the_timeout(qwen3_dir: Path, tmp_path: Path) -> None:
    async with fleet(qwen3_dir, tmp_path) as all_:
        helds, calls = await both_at_hold(all_)
        hanging = all_.engines[0]
        await hanging.state.pause("in_place")  # marks aborts and acts on none
        begun = time.monotonic()
        paused = await all_.pause(timeout_seconds=10)
        assert paused["quiesced"]
        assert time.monotonic() - begun < 10
        assert hanging.requests[0].outcome != "aborted"
        assert all_.engines[1].requests[0].outcome == "aborted"
        await hanging.state.resume()
        await all_.resume()
        assert [text_of(await call) for call in calls] == [held.text for held in helds]


async def test_hold_is_refused_if_one_worker_gives_no_spans(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir, version_spans=False, weight_version="1") as old,
        fleet(qwen3_dir, tmp_path) as all_,
    ):
        assert (await all_.pause(mode="hold"))["mode"] == "hold"
        await all_.resume()
        all_.router.listed.append(old.url)
        assert f"{old.url} says version 0.5.18" in (await all_.pause(400, mode="hold"))["error"]["message"]


async def test_hold_does_not_wait_for_a_worker_that_hangs(qwen3_dir: Path, tmp_path: Path) -> None:
    async with SilentServer() as silent, fleet(qwen3_dir, tmp_path) as all_:
        all_.router.listed.append(silent.url)
        begun = time.monotonic()
        error = (await all_.pause(400, mode="hold", timeout_seconds=1))["error"]
        assert time.monotonic() - begun < 5
        assert f"{silent.url} says version None" in error["message"]


async def test_a_router_that_is_down_is_named_and_keeps_the_pause(qwen3_dir: Path, tmp_path: Path) -> None:
    async with fleet(qwen3_dir, tmp_path) as all_:
        await all_.pause()
        await all_.router._runner.cleanup()
        error = (await all_.resume(503))["error"]
        assert all_.router.url in error["message"]


async def test_an_agents_call_through_a_router_is_exact(qwen3_dir: Path, tmp_path: Path) -> None:
    async with fleet(qwen3_dir, tmp_path) as all_:
        engine = all_.engines[0]
        session = all_.session(engine)
        engine.replies.append(Reply(text="Paris."))
        assert text_of(await all_.running.chat(session, ask())) == "Paris."
        [request] = engine.requests
        assert request.session == session
        assert "stream_interval" not in request.sampling_params  # routers drop it

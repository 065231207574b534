"""Pause and resume through the routers that people run, with stand-ins as their workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fake_sglang import FakeSGLang, RecordedRequest, Reply
from tests.support.chat import Held, ask, completion
from tests.support.routers import ROUTERS, running_router
from tests.support.running import Running, engine_for, running_sidecar
from tests.support.waiting import until


@asynccontextmanager
async def behind(
    name: str, qwen3_dir: Path, tmp_path: Path, **options: Any
) -> AsyncIterator[tuple[Running, list[FakeSGLang], str]]:
    options = {"weight_version": "1", "incremental": True, **options}
    async with (
        engine_for(qwen3_dir, **options) as first,
        engine_for(qwen3_dir, **options) as second,
        running_router(name, tmp_path / "router.log", first.url, second.url) as url,
    ):
        named: Any = type("Url", (), {"url": url})  # all that a sidecar needs of an engine
        async with running_sidecar(named, tmp_path / "state") as running:
            yield running, [first, second], url


def all_requests(engines: list[FakeSGLang]) -> list[RecordedRequest]:
    return [request for engine in engines for request in engine.requests]


@pytest.mark.parametrize("name", ROUTERS)
async def test_sessions_keep_their_worker_and_a_pause_reaches_all_of_them(
    name: str, qwen3_dir: Path, tmp_path: Path
) -> None:
    async with behind(name, qwen3_dir, tmp_path) as (running, engines, _):
        helds = {f"s{n}": Held(f"s{n} one two three four five six") for n in range(12)}
        for engine in engines:
            engine.script = lambda request: helds[request.session or ""].reply()
        calls = {name: asyncio.ensure_future(running.chat(name, ask())) for name in helds}
        await until(lambda: [len(one.output_ids) for one in all_requests(engines)] == [3] * 12, "all at their hold")
        assert all(engine.requests for engine in engines)  # twelve keys are spread over two workers
        where = {one.session: engine for engine in engines for one in engine.requests}
        first_rids = {one.rid for one in all_requests(engines)}
        paused = await running.post("/v1/rollout/pause", {"timeout_seconds": 20})
        assert (paused["quiesced"], paused["suspended"], paused["version"]) == (True, 12, "1")
        assert set(paused["preempted_request_ids"]) == first_rids
        assert {one.outcome for one in all_requests(engines)} == {"aborted"}

        engines[0].set_weight_version("2")
        error = (await running.post("/v1/rollout/resume", {"pause_id": paused["pause_id"]}, 503))["error"]
        assert error["code"] == "backend_not_ready"
        assert f"{engines[0].url} has 2" in error["message"]
        assert f"{engines[1].url} has 1" in error["message"]
        engines[1].set_weight_version("2")
        resumed = await running.post("/v1/rollout/resume", {"pause_id": paused["pause_id"], "version": "2"})
        assert (resumed["status"], resumed["version"]) == ("resumed", "2")

        for session, call in calls.items():
            assert completion(await call).choices[0].message.content == helds[session].text
            requests = where[session].recorder.session(session)
            assert len(requests) == 2  # at the same worker
            where[session].assert_i1(session=session)
            [segment] = await running.segments(session)
            sampled = segment["full_versions"][len(requests[0].input_ids) :]
            assert sampled == ["1"] * 3 + ["2"] * (len(sampled) - 3)


@pytest.mark.parametrize("name", ROUTERS)
async def test_what_routers_answer_is_what_the_stand_in_router_does(
    name: str, qwen3_dir: Path, tmp_path: Path
) -> None:
    async with behind(name, qwen3_dir, tmp_path) as (running, engines, url), aiohttp.ClientSession() as client:
        for path in ("/abort_request", "/pause_generation", "/continue_generation"):
            async with client.post(f"{url}{path}", json={}) as response:
                assert response.status == 404, path
        async with client.get(f"{url}/workers") as response:
            listed = (await response.json())["workers"]
        assert {one["url"] for one in listed} == {engine.url for engine in engines}
        assert all(one["is_healthy"] is True for one in listed)
        for engine in engines:
            engine.script = lambda request: Reply(text="ok")
        completion(await running.chat("s", ask()))
        [request] = all_requests(engines)
        assert request.session == "s"
        assert request.sampling_params["no_stop_trim"] is True
        assert request.sampling_params["skip_special_tokens"] is False
        assert "stream_interval" not in request.sampling_params
        workers = (await running.control.get("/integration/capabilities")).json()["engine"]["workers"]
        assert {(one["url"], one["weight_version"]) for one in workers} == {(one.url, "1") for one in engines}


@pytest.mark.parametrize("name", ROUTERS)
async def test_where_workers_take_no_abort_leaving_the_router_aborts(
    name: str, qwen3_dir: Path, tmp_path: Path
) -> None:
    """The workers want an admin key that the sidecar was not given. sglang-router 0.3.2 notices that its client is
    gone when it has something to send."""
    async with behind(name, qwen3_dir, tmp_path, admin_key="secret") as (running, engines, _):
        text = "word " * 100
        for engine in engines:
            engine.script = lambda request: Reply(text=text, chunk_tokens=1, delay=0.05)
        call = asyncio.ensure_future(running.chat("s", ask()))
        await until(lambda: any(len(one.output_ids) > 3 for one in all_requests(engines)), "a few tokens")
        paused = await running.post("/v1/rollout/pause")
        assert (paused["quiesced"], paused["suspended"]) == (True, 1)
        [first] = all_requests(engines)
        await until(lambda: first.done, "the worker has noticed")
        assert first.outcome == "disconnected"
        for engine in engines:
            engine.script = None
        await running.post("/v1/rollout/resume")
        assert completion(await call).choices[0].message.content == text
        second = all_requests(engines)[1]
        known = len(second.input_ids) - len(first.input_ids)
        assert known >= 3
        assert second.input_ids == first.input_ids + first.output_ids[:known]


@pytest.mark.parametrize("name", ROUTERS)
async def test_a_worker_that_is_gone_keeps_the_pause(name: str, qwen3_dir: Path, tmp_path: Path) -> None:
    async with behind(name, qwen3_dir, tmp_path) as (running, engines, _):
        paused = await running.post("/v1/rollout/pause")
        await engines[1].down()
        error = (await running.post("/v1/rollout/resume", {"pause_id": paused["pause_id"]}, 503))["error"]
        assert engines[1].url in error["message"]
        assert engines[0].url not in error["message"]
        await engines[1].up()
        assert (await running.post("/v1/rollout/resume", {"pause_id": paused["pause_id"]}))["status"] == "resumed"

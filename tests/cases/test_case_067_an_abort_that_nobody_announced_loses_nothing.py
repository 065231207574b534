"""Case 67: `/update_weight_version` aborts everything unless told otherwise; elsewhere 16 of 16 calls in flight
were lost after a pause with `retract`, 1.1 million tokens in 221 steps.

Here an abort that the sidecar did not ask for is a preemption like any other.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_sglang import FakeSGLang, Reply
from tests.support.chat import ask, completion
from tests.support.running import Running, engine_for, running_sidecar

TEXT = "one two three four five six seven eight"
COUNT, KNOWN = 16, 4


async def in_flight(
    running: Running, engine: FakeSGLang
) -> tuple[asyncio.Event, list[asyncio.Task[httpx.Response]]]:
    open_ = asyncio.Event()
    engine.script = lambda request: Reply(text=TEXT, hold=open_, hold_after=KNOWN, chunk_tokens=1)
    calls = [asyncio.ensure_future(running.chat(f"s{n}", ask())) for n in range(COUNT)]
    await engine.wait_until(lambda: [len(one.output_ids) for one in engine.requests] == [KNOWN] * COUNT)
    return open_, calls


async def post(engine: FakeSGLang, path: str, **body: Any) -> None:
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as client:
        assert (await client.post(path, json=body)).status_code == 200


async def assert_nothing_was_lost(
    running: Running, engine: FakeSGLang, calls: list[asyncio.Task[httpx.Response]]
) -> None:
    for number, call in enumerate(calls):
        assert completion(await call).choices[0].message.content == TEXT
        first, *rest = engine.recorder.session(f"s{number}")
        engine.recorder.assert_token_exact([first, *rest])
        [segment] = await running.segments(f"s{number}")
        assert segment["tokens"] == engine.recorder.session(f"s{number}")[-1].input_ids + rest[-1].output_ids
        versions = segment["full_versions"][len(first.input_ids) :]
        assert versions == ["1"] * KNOWN + ["2"] * (len(versions) - KNOWN)


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
async def test_an_update_inside_the_engines_own_pause_loses_none_of_sixteen(
    qwen3_dir: Path, tmp_path: Path, mode: str
) -> None:
    async with (
        engine_for(qwen3_dir, weight_version="1") as engine,
        running_sidecar(engine, tmp_path / "state") as running,
    ):
        open_, calls = await in_flight(running, engine)
        await post(engine, "/pause_generation", mode=mode)
        await post(engine, "/update_weight_version", new_version="2")
        await post(engine, "/continue_generation")
        open_.set()
        await assert_nothing_was_lost(running, engine, calls)


async def test_an_update_inside_a_pause_of_ours_loses_none_of_sixteen(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir, weight_version="1") as engine,
        running_sidecar(engine, tmp_path / "state") as running,
    ):
        _, calls = await in_flight(running, engine)
        paused = await running.post("/v1/rollout/pause")
        assert (paused["quiesced"], len(paused["preempted_request_ids"])) == (True, COUNT)
        await post(engine, "/update_weight_version", new_version="2")
        await running.post("/v1/rollout/resume", {"pause_id": paused["pause_id"], "version": "2"})
        await assert_nothing_was_lost(running, engine, calls)

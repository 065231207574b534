"""Many generations in flight: all are aborted, and the pause is quiet in seconds."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask
from tests.support.running import engine_for, running_sidecar

SECONDS = 30.0
"""A generous limit for what takes a few: the machine may be busy with other things."""


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Each call takes four descriptors of this one process: agent, gateway, engine client, engine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 6000:
        pytest.skip(f"needs 6,000 open files, and the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 6000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("count", "incremental"), [(130, False), (1000, True)])
async def test_all_that_run_are_aborted_and_go_on(
    qwen3_dir: Path, tmp_path: Path, count: int, incremental: bool
) -> None:
    open_ = asyncio.Event()
    text = "one two three four five six"
    async with (
        engine_for(qwen3_dir, incremental=incremental, weight_version="1") as engine,
        running_sidecar(engine, tmp_path / "state") as running,
        aiohttp.ClientSession(  # httpx looks through all its connections for every request
            running.sidecar.gateway.url,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=170),
        ) as agents,
    ):
        engine.script = lambda request: Reply(text=text, hold=open_, hold_after=3, chunk_tokens=1)

        async def call(number: int) -> str:
            path = f"/sessions/s{number}/v1/chat/completions"
            async with agents.post(path, json=ask()) as response:
                reply = await response.json()
                assert response.status == 200, reply
                return str(reply["choices"][0]["message"]["content"])

        calls = [asyncio.ensure_future(call(number)) for number in range(count)]
        await engine.wait_until(lambda: sum(len(one.output_ids) == 3 for one in engine.requests) == count, 150)
        begun = time.monotonic()
        paused = await running.post("/v1/rollout/pause", {"timeout_seconds": SECONDS})
        took = time.monotonic() - begun
        assert paused["quiesced"], paused["active"]
        assert took < SECONDS
        print(f"{count} generations: quiet after {took:.2f} s")
        assert sorted(paused["preempted_request_ids"]) == sorted(one.rid for one in engine.requests)
        assert (paused["active"], paused["suspended"], paused["abort_failed_request_ids"]) == (0, count, [])
        # where a thousand take longer than two seconds, the last are cut; nothing is lost by that either
        assert {one.outcome for one in engine.requests} <= {"aborted", "disconnected"}
        engine.set_weight_version("2")
        await running.post("/v1/rollout/resume", {"pause_id": paused["pause_id"]})
        assert await asyncio.gather(*calls) == [text] * count
        assert len(engine.requests) == 2 * count
        engine.assert_i1()
        assert len(running.sidecar.controller.active) == running.sidecar.pauses.gate.suspended == 0

"""Case 81: with `in_place` the cache cannot be flushed while requests run; with `retract` it can, and all is
computed anew. Who pauses has to know which it is, so every reply of a pause names the mode.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.support.chat import Held, ask, completion
from tests.support.running import engine_for, running_sidecar


@pytest.mark.parametrize(("engine_mode", "flushed"), [("in_place", 400), ("retract", 200)])
async def test_hold_leaves_the_engines_modes_as_they_are(
    qwen3_dir: Path, tmp_path: Path, engine_mode: str, flushed: int
) -> None:
    async with (
        engine_for(qwen3_dir) as engine,
        running_sidecar(engine, tmp_path / "state") as running,
        httpx.AsyncClient(base_url=engine.url, timeout=60) as trainer,
    ):
        held = Held()
        engine.replies.append(held.reply())
        call = asyncio.ensure_future(running.chat("s", ask()))
        await held.reached(engine)
        paused = await running.post("/v1/rollout/pause", {"mode": "hold"})
        assert (paused["mode"], paused["active"], paused["quiesced"]) == ("hold", 1, False)
        await trainer.post("/pause_generation", json={"mode": engine_mode})
        assert (await trainer.post("/flush_cache")).status_code == flushed
        await trainer.post("/continue_generation", json={})
        held.open.set()
        await running.post("/v1/rollout/resume")
        assert completion(await call).choices[0].message.content == held.text


@pytest.mark.parametrize("mode", ["abort", "drain"])
async def test_after_abort_and_drain_nothing_holds_the_cache(qwen3_dir: Path, tmp_path: Path, mode: str) -> None:
    async with (
        engine_for(qwen3_dir) as engine,
        running_sidecar(engine, tmp_path / "state") as running,
        httpx.AsyncClient(base_url=engine.url, timeout=60) as trainer,
    ):
        held = Held()
        engine.replies.append(held.reply())
        call = asyncio.ensure_future(running.chat("s", ask()))
        await held.reached(engine)
        if mode == "drain":
            held.open.set()
        paused = await running.post("/v1/rollout/pause", {"mode": mode})
        assert (paused["mode"], paused["quiesced"]) == (mode, True)
        await engine.wait_idle()
        assert (await trainer.post("/flush_cache")).status_code == 200
        [listed] = (await running.control.get("/v1/rollout/pause_state")).json()["pauses"]
        assert listed["mode"] == mode
        await running.post("/v1/rollout/resume")
        assert completion(await call).choices[0].message.content == held.text

"""Case 70: the abort is accepted, and then the call fails instead of returning what it has.

The step goes on from the last ids that came; nothing is sampled twice or lost. (The refusal of a second version in
a trajectory is `tests/generation/test_controller_versions.py`'s and `--no-partial-rollout`'s.)
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.chat import Held, ask, completion
from tests.support.running import engine_for, running_sidecar
from tests.support.waiting import until


@pytest.mark.parametrize("incremental", [False, True], ids=["cumulative", "incremental"])
async def test_the_step_goes_on_from_the_last_ids_that_came(
    qwen3_dir: Path, tmp_path: Path, incremental: bool
) -> None:
    async with (
        engine_for(qwen3_dir, incremental=incremental, weight_version="1") as engine,
        running_sidecar(engine, tmp_path / "state") as running,
    ):
        held = Held(after=8)  # a cumulative stream reports every eight tokens
        engine.replies.append(held.reply())
        call = asyncio.ensure_future(running.chat("s", ask()))
        first = await held.reached(engine)
        await engine.state.pause("in_place")  # the abort is accepted, and cannot act yet
        pausing = asyncio.ensure_future(running.post("/v1/rollout/pause"))
        await until(
            lambda: any(one.status == 200 for one in engine.recorder.calls_to("/abort_request")), "an abort"
        )
        await engine.down()
        paused = await pausing
        assert (paused["quiesced"], paused["suspended"]) == (True, 1)
        assert first.outcome == "lost"
        await engine.up()
        engine.set_weight_version("2")
        await running.post("/v1/rollout/resume", {"pause_id": paused["pause_id"]})
        assert completion(await call).choices[0].message.content == held.text
        _, second = engine.requests
        known = len(second.input_ids) - len(first.input_ids)
        assert 0 < known <= held.after
        assert second.input_ids == first.input_ids + first.output_ids[:known]
        [segment] = await running.segments("s")
        assert segment["tokens"] == second.input_ids + second.output_ids
        logprobs = [*first.output_logprobs[:known], *second.output_logprobs]
        assert segment["full_logprobs"][len(first.input_ids) :] == logprobs
        assert segment["full_versions"][-1] == "2"

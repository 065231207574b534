"""Case 79: one weight version per request is wrong if the request straddles an update.

Input: a reply of 128 tokens, 0 to 56 sampled by version 7, 57 to 127 by version 8, as one engine call (the engine's
own `in_place` pause) and as two (its pause in mode `abort`, which the sidecar was not told of).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion
from tests.support.running import Running
from tests.trainer_hooks.builders import make_template
from trainer_hooks.slime.samples import expand_segments_to_samples

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("mode", ["in_place", "abort"])
async def test_a_reply_that_straddles_an_update_names_both_versions(shared: Running, mode: str) -> None:
    session, engine = f"case-79-{mode}", shared.engine
    await shared.open(session, instance_id="i")
    engine.set_weight_version("7")
    ids = [1000 + index for index in range(128)]
    hold = asyncio.Event()
    reply = Reply(ids=ids, finish="length", hold=hold, hold_after=57)
    engine.replies.append(reply)
    calling = asyncio.ensure_future(shared.chat(session, ask(max_tokens=128)))
    [request] = await engine.wait_requests(1)
    await engine.wait_tokens(request, 57)
    await engine.state.pause(mode)
    engine.set_weight_version("8")
    hold.set()
    await engine.state.resume()
    completion(await calling)
    assert len(engine.requests) == (1 if mode == "in_place" else 2)

    [segment] = await shared.segments(session)
    start = len(request.input_ids)
    assert segment["tokens"][start:] == ids
    assert segment["full_versions"] == ["-1"] * start + ["7"] * 57 + ["8"] * 71
    spans: list[dict[str, Any]] = [
        {"start": start, "end": start + 57, "version": "7"},
        {"start": start + 57, "end": start + 128, "version": "8"},
    ]
    assert segment["extra_info"]["version_spans"] == spans

    [sample] = expand_segments_to_samples(make_template(), [segment])
    assert sample.weight_versions == ["7", "8"]
    assert sample.metadata["version_spans"] == spans
    assert sample.metadata["dressage_start_token_version"] == "7"
    assert sample.metadata["dressage_end_token_version"] == "8"
    assert sample.metadata["dressage_partial_rollout"] is True
    masked = {**segment, "extra_info": {**segment["extra_info"], "mask_nonlast_version_tokens": True}}
    [sample] = expand_segments_to_samples(make_template(), [masked])
    assert sample.loss_mask == [0] * 57 + [1] * 71

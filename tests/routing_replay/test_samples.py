"""From the engine's router to slime's sample, through the running sidecar, its client and the hooks."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.fake_sglang import Reply, faults
from tests.fake_sglang.experts import routed_experts
from tests.routing_replay.rows import ENGINE, SETTINGS, SHAPE
from tests.support.chat import ask, user
from tests.support.conversation import Conversation
from tests.support.running import Running
from tests.trainer_hooks.builders import make_template
from tests.trainer_hooks.slime_stand_in import check_replay, check_train_data, make_args
from trainer_hooks.client import ControlClient
from trainer_hooks.control_requests import Arrays
from trainer_hooks.control_results import Segment
from trainer_hooks.slime.convert_samples import convert_samples_to_train_data
from trainer_hooks.slime.errors import SegmentError
from trainer_hooks.slime.samples import expand_segments_to_samples

__all__ = ["ENGINE", "SETTINGS"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

ARGS: dict[str, Any] = {
    "use_rollout_routing_replay": True,
    "num_layers": SHAPE[0],
    "moe_router_topk": SHAPE[1],
    "global_batch_size": 1,
    "n_samples_per_prompt": 1,
}


async def segments_of(running: Running, session: str, arrays: Arrays = "binary") -> list[Segment]:
    """As a trainer gets them: finalized and read by the control client."""

    def read() -> list[Segment]:
        with ControlClient(running.sidecar.control.url, running.sidecar.control_token) as control:
            control.finalize_session(session, instance_id="task", reward=1.0)
            return control.read_trajectory(session_id=session, arrays=arrays)["data"]

    return await asyncio.to_thread(read)


def assert_replays(sample: Any, args: Any) -> None:
    """int32, one row per token but the last, and each the router's own."""
    experts = sample.rollout_routed_experts
    assert experts.dtype == np.int32
    assert np.array_equal(experts, routed_experts(sample.tokens, SHAPE))
    check_replay(experts, args)


async def test_a_sample_replays_what_the_engine_routed(shared: Running) -> None:
    talk = Conversation(shared, "sample")
    for text in ("One.", "Two.", "Three."):
        await talk.say(user(f"say {text}"), reply=text)
    args = make_args(**ARGS)
    samples = expand_segments_to_samples(make_template(), await segments_of(shared, "sample"), args=args)
    assert len(samples) == 1
    assert_replays(samples[0], args)
    data = convert_samples_to_train_data(args, samples)
    check_train_data(data)
    assert np.array_equal(data["rollout_routed_experts"][0], samples[0].rollout_routed_experts)


async def test_each_sample_of_a_fan_out_has_the_rows_of_its_own_tokens(shared: Running) -> None:
    talk = Conversation(shared, "fan-out")
    await talk.say(user("Hi"), reply="Hello.")
    shared.engine.replies.append(Reply(text="Side."))
    assert (await shared.chat("fan-out", ask("Give this a title"))).status_code == 200
    await talk.say(user("Go on"), reply="On.")
    args = make_args(**ARGS)
    samples = expand_segments_to_samples(make_template(), await segments_of(shared, "fan-out"), args=args)
    assert len(samples) == 2
    for sample in samples:
        assert_replays(sample, args)


async def test_the_cap_cuts_rows_with_their_tokens(shared: Running) -> None:
    talk = Conversation(shared, "capped")
    await talk.say(user("Hi"), reply="one two three four five six seven")
    request = talk.requests[0]
    args = make_args(**ARGS, max_tokens_per_gpu=len(request.input_ids) + 3)
    [sample] = expand_segments_to_samples(make_template(), await segments_of(shared, "capped"), args=args)
    assert len(sample.tokens) == len(request.input_ids) + 3
    assert_replays(sample, args)


async def test_an_anchor_that_lacks_its_last_rows_still_trains_what_has_them(shared: Running) -> None:
    talk = Conversation(shared, "tail")
    await talk.say(user("Hi"), reply="Hello.")
    await talk.say(user("Go on"), reply=Reply(text="On.", faults=faults.NoRoutedRows()))
    args = make_args(**ARGS)
    [sample] = expand_segments_to_samples(make_template(), await segments_of(shared, "tail"), args=args)
    held = len(talk.requests[0].input_ids) + len(talk.requests[0].output_ids) - 1
    expected = routed_experts(sample.tokens, SHAPE)
    assert sample.rollout_routed_experts.shape == expected.shape
    assert np.array_equal(sample.rollout_routed_experts[:held], expected[:held])
    assert sum(sample.loss_mask) == len(talk.requests[0].output_ids)
    check_replay(sample.rollout_routed_experts, args)


async def test_an_anchor_without_any_rows_is_carried_without_gradient(shared: Running) -> None:
    """Its segment has the reward, a side call trains: placeholders stand where no gradient is."""
    talk = Conversation(shared, "rowless anchor")
    rowless = Reply(text="A.", faults=faults.NoRoutedRows())
    await talk.say({"role": "system", "content": "s"}, user("Hi"), reply=rowless)
    shared.engine.replies.append(Reply(text="Title."))
    assert (await shared.chat("rowless anchor", ask("Give this a title"))).status_code == 200
    args = make_args(**ARGS)
    segments = await segments_of(shared, "rowless anchor")
    assert [("routed_experts" in one, one["extra_info"]["is_anchor"]) for one in segments] == [
        (True, False),
        (False, True),
    ]
    side, anchor = expand_segments_to_samples(make_template(), segments, args=args)
    assert_replays(side, args)
    assert anchor.rollout_routed_experts.shape == (len(anchor.tokens) - 1, *SHAPE[:2])
    check_replay(anchor.rollout_routed_experts, args)
    assert not any(anchor.loss_mask)


async def test_packed_rows_that_are_broken_are_refused_by_name(shared: Running) -> None:
    talk = Conversation(shared, "broken")
    await talk.say(user("Hi"), reply="Hello.")
    [segment] = await segments_of(shared, "broken", "json")
    packed = segment["routed_experts"]
    args = make_args(**ARGS)
    for changes, said in (
        ({"dtype": "float32"}, "dtype is 'float32'"),
        ({"shape": [1, 2]}, "no uint8 of shape"),
        ({"shape": "all"}, "shape is 'all'"),
        ({"data": "%%%"}, "no base64"),
        ({"data": None}, "data is NoneType"),
        ({"data": ""}, "holds 0 bytes"),
    ):
        broken = {**segment, "routed_experts": {**packed, **changes}}
        with pytest.raises(SegmentError, match=said):
            expand_segments_to_samples(make_template(), [broken], args=args)

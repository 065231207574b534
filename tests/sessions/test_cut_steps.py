"""A step cut by length or a stop string is closed exactly once: as context of what follows, in every segment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fake_sglang import FakeSGLang, Reply
from tests.sessions.agent import Agent, check_trained_once, prompt_text, trained
from tests.support.running import running_sidecar

IM_END = 151645
CUT = Reply(text="A ca", finish="length", append_stop=False)


def after_sampled(segment: dict[str, Any], sampled: list[int]) -> int:
    """The position behind a run of sampled ids in a segment."""
    tokens = segment["tokens"]
    found = [n for n in range(len(tokens)) if tokens[n : n + len(sampled)] == sampled]
    assert len(found) == 1
    return found[0] + len(sampled)


async def test_the_close_of_a_cut_step_is_there_once_and_is_context(engine: FakeSGLang, tmp_path: Path) -> None:
    agent = Agent()
    async with running_sidecar(engine, tmp_path / "state") as running:
        cut = await agent.turn(running, "What is it?", CUT)
        await agent.turn(running, "Go on.", "A cat.")
        await agent.turn(running, "Sure?", "Yes.")
        [segment] = await running.segments("s")
    assert IM_END not in cut.output_ids
    assert trained(segment)[: len(cut.output_ids)] == cut.output_ids
    at = after_sampled(segment, cut.output_ids)
    assert segment["tokens"][at : at + 2] == [IM_END, *engine.vocabulary.encode("\n")]
    assert segment["full_loss_mask"][at] == 0
    assert segment["full_logprobs"][at] == 0.0
    assert segment["full_versions"][at] == "-1"
    assert segment["tokens"].count(IM_END) == 6  # three questions, three replies
    assert segment["extra_info"]["truncated"] is False
    check_trained_once([segment], engine.requests)


async def test_a_cut_last_step_is_not_closed_and_says_so(engine: FakeSGLang, tmp_path: Path) -> None:
    async with running_sidecar(engine, tmp_path / "state") as running:
        cut = await Agent().turn(running, "What is it?", CUT)
        [segment] = await running.segments("s")
    assert segment["tokens"] == cut.input_ids + cut.output_ids
    assert segment["extra_info"]["truncated"] is True
    assert segment["finish_reason"] == "length"


async def test_each_branch_behind_a_cut_step_closes_it_for_itself(engine: FakeSGLang, tmp_path: Path) -> None:
    agent, other = Agent(), Agent()
    async with running_sidecar(engine, tmp_path / "state") as running:
        cut = await agent.turn(running, "What is it?", CUT)
        other.messages, other.whole = list(agent.messages), list(agent.whole)
        await agent.turn(running, "Go on.", "A cat.")
        await other.turn(running, "Stop.", "Fine.")
        segments = await running.segments("s")
    assert len(segments) == 2
    for segment in segments:
        at = after_sampled(segment, cut.output_ids)
        assert segment["tokens"][at] == IM_END
        assert segment["full_loss_mask"][at] == 0
        assert segment["tokens"].count(IM_END) == 4
    check_trained_once(segments, engine.requests)


async def test_a_restart_between_cut_and_close_changes_nothing(engine: FakeSGLang, tmp_path: Path) -> None:
    agent = Agent()
    for new, said in (("What is it?", CUT), ("Go on.", "A cat."), ("Sure?", "Yes.")):
        async with running_sidecar(engine, tmp_path / "state") as running:
            await agent.turn(running, new, said)
    async with running_sidecar(engine, tmp_path / "state") as running:
        [segment] = await running.segments("s")
    at = after_sampled(segment, engine.requests[0].output_ids)
    assert segment["tokens"][at : at + 2] == [IM_END, *engine.vocabulary.encode("\n")]
    assert segment["tokens"].count(IM_END) == 6
    engine.assert_i1(session="s")


@pytest.mark.parametrize(
    "said",
    [CUT, Reply(text="A cat. STOP", finish="stop_str:STOP", append_stop=False)],
    ids=["length", "stop string"],
)
async def test_a_segment_that_a_boundary_starts_holds_the_close_once_too(
    engine: FakeSGLang, tmp_path: Path, said: Reply
) -> None:
    agent = Agent(stop=["STOP"])
    async with running_sidecar(engine, tmp_path / "state") as running:
        await agent.turn(running, "What is it?", said)
    async with running_sidecar(engine, tmp_path / "state", chat_template="qwen3-keep-thinking") as running:
        request = await agent.turn(running, "Go on.", "Done.")
        segments = await running.segments("s")
    assert prompt_text(engine, request).count("<|im_end|>") == 3
    assert segments[0]["tokens"].count(IM_END) == 1
    assert segments[0]["finish_reason"] == "segment_boundary"
    check_trained_once(segments, engine.requests)

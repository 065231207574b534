"""Rows that cannot be right keep their step from training; what was right before and comes after stays usable."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from tests.fake_sglang import Reply, faults
from tests.fake_sglang.experts import routed_experts
from tests.routing_replay.rows import ENGINE, SETTINGS, SHAPE, asked, assert_rows, only_segment, reasons, rows_of
from tests.support.chat import user
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import Running, engine_for, running_sidecar

__all__ = ["ENGINE", "SETTINGS"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRONG = {
    "none": (faults.NoRoutedRows(), "sent no rows"),
    "one too few": (faults.RoutedRowCount(-1), "rows of routed_experts from"),
    "one too many": (faults.RoutedRowCount(1), "rows of routed_experts from"),
    "an expert beyond the model's": (faults.ExpertId(SHAPE[2]), "holds expert 16; ids are 0 to 15"),
    "a negative expert": (faults.ExpertId(-1, slots=(1, 2)), "holds expert -1"),
    "the sentinel of shared experts": (faults.ExpertId(255, slots=(1, 2)), "holds expert 255"),
}


async def two_turns(running: Running, session: str, fault: faults.Fault) -> Conversation:
    """The second of two turns comes with the fault."""
    talk = Conversation(running, session)
    await talk.say(user("Hi"), reply="Hello.")
    await talk.say(user("Go on"), reply=Reply(text="On.", faults=fault))
    return talk


@pytest.mark.parametrize("name", WRONG)
async def test_a_last_step_with_wrong_rows_does_not_train(
    shared: Running, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    session, (fault, said) = f"last, {name}", WRONG[name]
    with caplog.at_level(logging.WARNING, "sidecar.sessions.session"):
        talk = await two_turns(shared, session, fault)
    assert said in caplog.text and session in caplog.text
    first, second = talk.requests
    segment = await only_segment(shared, session)
    assert reasons(segment) == ["replay_rows"]
    assert trained_ids(segment) == first.output_ids
    assert segment["tokens"] == second.input_ids + second.output_ids
    held = len(first.input_ids) + len(first.output_ids) - 1
    rows, missing = rows_of(segment), segment["extra_info"]["routed_rows_missing"]
    assert len(rows) == len(segment["tokens"]) - 1 == held + missing
    assert np.array_equal(rows[:held], routed_experts(segment["tokens"], SHAPE)[:held])
    assert (rows[held:] == np.arange(SHAPE[1])).all()


@pytest.mark.parametrize("name", WRONG)
async def test_the_next_step_brings_what_one_lacks_and_trains(shared: Running, name: str) -> None:
    session = f"healed, {name}"
    talk = await two_turns(shared, session, WRONG[name][0])
    await talk.say(user("And?"), reply="So.")
    first, second, third = talk.requests
    assert asked(second) == asked(third) == len(first.input_ids) + len(first.output_ids) - 1
    segment = await only_segment(shared, session)
    assert_rows(segment)
    assert reasons(segment) == ["replay_rows"]
    assert trained_ids(segment) == first.output_ids + third.output_ids
    assert "routed_rows_missing" not in segment["extra_info"]


async def test_a_server_that_sends_all_rows_is_sliced(shared: Running) -> None:
    talk = await two_turns(shared, "all", faults.AllRoutedRows())
    assert asked(talk.requests[1])
    segment = await only_segment(shared, "all")
    assert_rows(segment)
    assert reasons(segment) == []


async def test_a_partial_with_wrong_rows_keeps_its_step_from_training(shared: Running) -> None:
    """The next call brings the right ones, but an engine that errs once is not to be trusted within a step."""
    talk = Conversation(shared, "partial")
    reply = Reply(
        text="one two three four",
        chunk_tokens=1,
        faults=[faults.RoutedRowCount(1), faults.EngineAbort(2, status_code=None, err_type=None)],
    )
    await talk.say(user("Hi"), reply=reply)
    assert [asked(request) for request in talk.requests] == [0, 0]
    segment = await only_segment(shared, "partial")
    assert_rows(segment)
    assert reasons(segment) == ["replay_rows"]


async def test_a_session_without_any_rows_can_be_read(shared: Running) -> None:
    talk = Conversation(shared, "rowless")
    await talk.say(user("Hi"), reply=Reply(text="Hello.", faults=faults.NoRoutedRows()))
    segment = await only_segment(shared, "rowless")
    assert "routed_experts" not in segment
    assert reasons(segment) == ["replay_rows"]
    assert trained_ids(segment) == []


@pytest.mark.asyncio(loop_scope="function")
async def test_experts_that_nothing_recorded_are_told_from_expert_255(qwen3_dir: Path, tmp_path: Path) -> None:
    """With 300 experts, 255 is one of them; twice for one token and layer it can only be the sentinel."""
    shape = (2, 3, 300)
    settings = {**SETTINGS, "routing_replay_shape": {"layers": 2, "topk": 3, "experts": 300}}
    async with engine_for(qwen3_dir, experts=shape) as engine, running_sidecar(engine, tmp_path, **settings) as it:
        talk = Conversation(it, "s")
        await talk.say(user("Hi"), reply=Reply(text="Hello.", faults=faults.ExpertId(255, slots=(1, 2))))
        await talk.say(user("Go on"), reply=Reply(text="On.", faults=faults.ExpertId(255, slots=(1, 3))))
        segment = await only_segment(it, "s")
        assert reasons(segment) == ["replay_rows"]
        assert trained_ids(segment) == talk.requests[0].output_ids

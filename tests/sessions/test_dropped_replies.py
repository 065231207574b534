"""A delivered reply that the agent dropped was the policy's action and trains; `--drop-rejected` leaves it out.

It is flagged either way. Several replies to one call (`n`) are siblings, none of them dropped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fake_sglang import FakeSGLang, Reply
from tests.support.chat import ask, completion, user
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import Running, running_sidecar

DROP = pytest.mark.parametrize("drop", [False, True], ids=["kept", "dropped"])


@asynccontextmanager
async def sidecar_that(drop: bool, engine: FakeSGLang, tmp_path: Path) -> AsyncIterator[Running]:
    async with running_sidecar(engine, tmp_path / "state", drop_rejected=drop) as running:
        yield running


async def outcome(talk: Conversation) -> tuple[list[bool], list[bool], list[str]]:
    """Which steps are flagged, which train, and the reasons of those that do not."""
    steps = await talk.steps()
    segments = await talk.segments()
    trained = [token for segment in segments for token in trained_ids(segment)]
    reasons = {one["step_id"]: one["reason"] for one in segments[-1]["extra_info"]["untrainable"]}
    ids = [step["step_id"] for step in steps]
    assert sorted(trained) == sorted(
        token
        for step_id, request in zip(ids, talk.requests, strict=True)
        if step_id not in reasons
        for token in request.output_ids
    )
    counted = [segment["extra_info"].get("untrainable_tokens") for segment in segments]
    assert counted[:-1] == [None] * (len(segments) - 1), "the anchor tells it for the whole session"
    lost = [len(r.output_ids) for step_id, r in zip(ids, talk.requests, strict=True) if step_id in reasons]
    assert sum(counted[-1].values()) == sum(lost) and set(counted[-1]) == set(reasons.values())
    return [step["rejected"] for step in steps], [one not in reasons for one in ids], list(reasons.values())


@DROP
async def test_a_reply_that_was_asked_for_again_and_replaced(
    engine: FakeSGLang, tmp_path: Path, drop: bool
) -> None:
    async with sidecar_that(drop, engine, tmp_path) as running:
        talk = Conversation(running, "again")
        await talk.say(user("What is it?"), reply="A dog.")
        talk.messages.pop()
        await talk.say(reply="A cat.", temperature=0.5)
        await talk.say(user("Sure?"), reply="Yes.")
        flags, trains, reasons = await outcome(talk)
        assert flags == [True, False, False]
        assert trains == [not drop, True, True]
        assert reasons == (["rejected"] if drop else [])


@DROP
async def test_a_reply_that_the_agent_repaired(engine: FakeSGLang, tmp_path: Path, drop: bool) -> None:
    async with sidecar_that(drop, engine, tmp_path) as running:
        talk = Conversation(running, "repaired")
        await talk.say(user("What is it?"), reply="A cat.")
        await talk.say(user("Sure?"), reply="Yes indeed.")
        talk.messages[-1] = {"role": "assistant", "content": "Yes."}
        await talk.say(user("Why?"), reply="So.")
        flags, trains, _ = await outcome(talk)
        assert flags == [False, True, False]
        assert trains == [True, not drop, True]


@DROP
async def test_choices_of_one_call_and_side_calls_are_not_dropped(
    engine: FakeSGLang, tmp_path: Path, drop: bool
) -> None:
    async with sidecar_that(drop, engine, tmp_path) as running:
        talk = Conversation(running, "choices")
        engine.replies.extend([Reply(text="A cat."), Reply(text="A dog.")])
        chosen = completion(await running.chat("choices", ask("What is it?", n=2))).choices[0].message
        talk.messages = [user("What is it?"), chosen.model_dump(exclude_none=True)]
        side = Conversation(running, "choices", list(talk.messages))
        await side.say(user("Make a title."), reply="Pets")
        await talk.say(user("Sure?"), reply="Yes.")
        flags, trains, _ = await outcome(talk)
        assert flags == [False] * 4
        assert trains == [True] * 4


async def test_segments_say_which_of_their_steps_were_dropped(engine: FakeSGLang, tmp_path: Path) -> None:
    async with sidecar_that(False, engine, tmp_path) as running:
        talk = Conversation(running, "flagged")
        await talk.say(user("What is it?"), reply="A dog.")
        talk.messages.pop()
        await talk.say(reply="A cat.")
        await talk.say(user("Sure?"), reply="Yes.")
        steps = await talk.steps()
        segments = await talk.segments()
        assert [one["extra_info"]["rejected"] for one in segments] == [[steps[0]["step_id"]], []]


async def test_what_was_in_force_when_the_session_was_finalized_stays(engine: FakeSGLang, tmp_path: Path) -> None:
    async with sidecar_that(True, engine, tmp_path) as running:
        talk = Conversation(running, "stays")
        await talk.say(user("What is it?"), reply="A dog.")
        talk.messages.pop()
        await talk.say(reply="A cat.")
        await talk.say(user("Sure?"), reply="Yes.")
        assert (await running.finalize("stays"))["num_segments"] == 1
    async with sidecar_that(False, engine, tmp_path) as running:
        assert len(await running.segments("stays")) == 1

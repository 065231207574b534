"""The property tests are no decoration: a sidecar that breaks an invariant is caught by the very same checks."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.sessions import admission, finalized, segment_json
from sidecar.sessions.session import Session
from sidecar.sessions.step_run import StepRun
from sidecar.tito import segment_columns
from sidecar.tito.delta import Delta, PromptBuilder
from sidecar.tito.model import Model
from sidecar.tito.place import Placement
from sidecar.tito.plan import PlannedPrompt
from sidecar.tito.segments import SegmentPlan, plan_segments
from tests.invariants import independent
from tests.invariants.agent import Agent
from tests.invariants.examples import aligned_example, durable_example, exact_example, unpoisoned_example
from tests.invariants.failures import Failure
from tests.invariants.house import House
from tests.invariants.independent import Crowd, Held, independent_example
from tests.invariants.killing import Fuse
from tests.invariants.moves import Ask, Program, Replay, Turn, programs
from tests.invariants.policy import Sample
from tests.invariants.profile import PLAIN
from tests.invariants.stage import Stage
from tests.invariants.world import World

THINKING = Ask(sample=Sample("Here it is.", reasoning="What is it?", split=1), replay=Replay(drop_reasoning=True))
LINEAR = Program("Be brief.", True, (Turn(THINKING), Turn(THINKING), Turn(THINKING)))


def assert_caught(
    stage: Stage,
    example: Callable[[World, Program], Awaitable[None]],
    words: str,
    strategy: st.SearchStrategy[Program] | None = None,
) -> None:
    """Random agents play against the sabotaged sidecar until one is hurt; the check's words have to be `words`."""

    @PLAIN
    @given(program=programs() if strategy is None else strategy)
    def run(program: Program) -> None:
        stage.play(lambda world: example(world, program))

    with pytest.raises(AssertionError, match=words):
        run()


def render_in_full(model: Model, placement: Placement) -> PlannedPrompt:
    """What a sidecar without token memory sends, said to be the parent's tokens and a delta."""
    prompt = model.builder.full(placement.request.messages, placement.request.conversation)
    return PlannedPrompt(prompt.ids, "root", prompt.tail, prompt.protected, None)


def test_a_full_rendering_in_the_place_of_the_delta_breaks_i1(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "render", render_in_full)
    assert_caught(stage, exact_example, "^I1: ")


def test_the_engines_own_record_shows_a_full_rendering(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def recorded(world: World, program: Program) -> None:
        journal = await Agent(world, world.new_session(), program).play()
        world.engine.assert_i1(journal.session_id, expected_roots=1)

    stage.play(lambda world: recorded(world, LINEAR))
    monkeypatch.setattr(admission, "render", render_in_full)
    assert_caught(stage, recorded, "^I1 broken", st.just(LINEAR))


def test_a_dropped_newline_after_the_stop_token_breaks_i2(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    make_delta = PromptBuilder.delta

    def without_newline(self: PromptBuilder, *arguments: Any) -> Delta:
        delta = make_delta(self, *arguments)
        assert self.codec.decode(delta.ids[:1].tolist()) == "\n"
        return replace(delta, ids=delta.ids[1:])

    monkeypatch.setattr(PromptBuilder, "delta", without_newline)
    assert_caught(stage, exact_example, "^I2: ")


def test_masked_tokens_that_lose_their_logprobs_break_i3(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_masked_logprobs(plan: SegmentPlan) -> Iterator[npt.NDArray[np.float32]]:
        for logprobs, mask in zip(segment_columns.logprobs(plan), segment_columns.loss_mask(plan), strict=True):
            yield logprobs * mask

    monkeypatch.setattr(segment_json, "logprobs", without_masked_logprobs)
    assert_caught(stage, aligned_example, "^I3: ")


def test_a_sampled_token_that_trains_in_two_branches_breaks_i4(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_everything(*arguments: Any) -> list[SegmentPlan]:
        plans = plan_segments(*arguments)
        everything = [frozenset(node.record.step_id for node in plan.nodes) for plan in plans]
        return [replace(plan, trained=trained) for plan, trained in zip(plans, everything, strict=True)]

    monkeypatch.setattr(finalized, "plan_segments", train_everything)
    assert_caught(stage, aligned_example, "^I4: ")


def test_a_step_committed_after_its_reply_breaks_i5(qwen3_dir: Path, tmp_path: Path) -> None:
    async def kill_at_the_second_reply() -> None:
        house = House(qwen3_dir, tmp_path, module="tests.invariants.late_store")
        try:
            await house.open()
            await durable_example(house, [LINEAR], Fuse("complete", 2))
        finally:
            await house.close()

    with pytest.raises(AssertionError, match=r"^I5: "):
        asyncio.run(kill_at_the_second_reply())


def test_a_session_that_generates_one_step_at_a_time_breaks_i7(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = Session.generate

    async def in_turn(self: Session, *arguments: Any) -> None:
        async with self.lock:
            await generate(self, *arguments)

    monkeypatch.setattr(Session, "generate", in_turn)
    monkeypatch.setattr(independent, "_PATIENCE", 1.0)  # it is to be caught, not waited for
    crowd = Crowd((Held("root", 1, False, False), Held("first turn", 1, False, False)), (0, 1))
    with pytest.raises(AssertionError, match=r"^I7: "):
        stage.play(lambda world: independent_example(world, crowd))


def test_a_failed_step_that_stays_in_its_session_breaks_i8(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: Session, run: StepRun) -> None:
        if run.failure is None:
            self.runs.pop(run.step_id)

    monkeypatch.setattr(Session, "retire", keep)
    failure = Failure("500", Ask(), retried=False)
    assert_caught(stage, partial(unpoisoned_example, wrong=[failure]), "^I8: ")

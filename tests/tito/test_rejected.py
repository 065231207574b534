"""Which delivered replies the agent dropped: never guessed, and untrained only if that is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from sidecar.tito.model import Model
from sidecar.tito.rejected import rejected_steps
from sidecar.tito.segments import TrainingRules, plan_segments, untrainable_steps
from sidecar.tito.trajectory import Trajectory
from tests.tito.forests import trajectories
from tests.tito.talk import Talk
from tests.tito.test_trajectory import forest

ASK = {"role": "user", "content": "What is behind the door?"}
MORE = {"role": "user", "content": "Sure?"}
SAME: dict[str, Any] = {"prompt_chain": b"the same prompt."}


@pytest.fixture
def talk(qwen3: Model) -> Talk:
    return Talk(qwen3)


class TestTwins:
    def test_the_agent_asked_again_and_went_on_with_the_second_reply(self) -> None:
        assert rejected_steps(forest(("a", None, SAME), ("b", None, SAME), ("c", "b"))) == {"a"}
        assert rejected_steps(forest(("r", None), ("a", "r", SAME), ("b", "r", SAME), ("c", "b"))) == {"a"}

    def test_it_went_on_with_the_first(self) -> None:
        assert rejected_steps(forest(("a", None, SAME), ("b", None, SAME), ("c", "a"))) == {"b"}

    def test_while_it_went_on_with_neither_nothing_is_dropped(self) -> None:
        assert rejected_steps(forest(("a", None, SAME), ("b", None, SAME))) == frozenset()

    def test_a_search_that_follows_both_drops_none(self) -> None:
        trajectory = forest(("a", None, SAME), ("b", None, SAME), ("c", "b"), ("d", "a"))
        assert rejected_steps(trajectory) == frozenset()

    def test_of_the_replies_of_one_call_none_is_dropped(self) -> None:
        choice = {**SAME, "call_id": "n=2"}
        assert rejected_steps(forest(("a", None, choice), ("b", None, choice), ("c", "b"))) == frozenset()

    def test_all_replies_of_a_call_are_dropped_for_those_of_another(self) -> None:
        choice = {**SAME, "call_id": "n=2"}
        trajectory = forest(("a", None, choice), ("b", None, choice), ("x", None, SAME), ("c", "x"))
        assert rejected_steps(trajectory) == {"a", "b"}

    def test_a_reply_that_was_not_delivered_or_never_made_was_not_dropped(self) -> None:
        for lost in ({"delivered": False}, {"state": "aborted", "delivered": False}):
            trajectory = forest(("a", None, {**SAME, **lost}), ("b", None, SAME), ("c", "b"))
            assert rejected_steps(trajectory) == frozenset()


class TestReplaced:
    def test_the_agent_put_its_own_message_in_the_place_of_the_reply(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A cat.<|im_end|>")
        talk.ask(MORE)
        talk.answer("Sure.<|im_end|>")
        talk.wire[-1] = {"role": "assistant", "content": "Repaired."}
        talk.ask({"role": "user", "content": "Why?"})
        assert talk.placement.replaced == ("step1",)
        talk.answer("So.<|im_end|>")
        assert rejected_steps(talk.trajectory) == {"step1"}

    def test_at_the_root_too(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A cat.<|im_end|>")
        talk.wire[-1] = {"role": "assistant", "content": "Repaired."}
        talk.ask(MORE)
        talk.answer("Sure.<|im_end|>")
        assert rejected_steps(talk.trajectory) == {"step0"}

    def test_a_reply_that_was_continued_elsewhere_was_not_dropped(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A cat.<|im_end|>")
        talk.ask(MORE)
        talk.answer("Sure.<|im_end|>")
        talk.wire = [ASK, {"role": "assistant", "content": "Repaired."}, MORE]
        talk.ask()
        talk.answer("No.<|im_end|>")
        assert rejected_steps(talk.trajectory) == frozenset()

    def test_a_side_call_that_ends_a_branch_is_no_dropped_reply(self, talk: Talk) -> None:
        talk.ask(ASK)
        talk.answer("A cat.<|im_end|>")
        talk.ask({"role": "user", "content": "Make a title."})
        talk.answer("Cats.<|im_end|>")
        talk.wire = talk.wire[:2]
        talk.ask(MORE)
        talk.answer("Sure.<|im_end|>")
        assert rejected_steps(talk.trajectory) == frozenset()


class TestTraining:
    FOREST = (("a", None, SAME), ("b", None, SAME), ("c", "b"))

    def test_a_dropped_reply_was_the_policys_action_and_trains(self) -> None:
        trajectory = forest(*self.FOREST)
        assert untrainable_steps(trajectory) == {}
        assert {step for plan in plan_segments(trajectory) for step in plan.trained} == {"a", "b", "c"}

    def test_unless_it_is_to_be_left_out(self) -> None:
        trajectory = forest(*self.FOREST)
        assert untrainable_steps(trajectory, TrainingRules(drop_rejected=True)) == {"a": "rejected"}
        [plan] = plan_segments(trajectory, rules=TrainingRules(drop_rejected=True))
        assert plan.trained == {"b", "c"}

    def test_an_earlier_reason_is_kept(self) -> None:
        off = {**SAME, "untrainable": "off_policy_sampling"}
        trajectory = forest(("a", None, off), *self.FOREST[1:])
        assert untrainable_steps(trajectory, TrainingRules(drop_rejected=True)) == {"a": "off_policy_sampling"}

    @settings(deadline=None)
    @given(trajectories())
    def test_only_delivered_leaves_are_ever_left_out(self, trajectory: Trajectory) -> None:
        for step_id in rejected_steps(trajectory):
            node = trajectory.get(step_id)
            assert node is not None
            assert not node.children
            assert node.delivered
            assert node.record.state == "committed"

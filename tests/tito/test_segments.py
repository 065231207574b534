"""What trains: every sampled token once, in the right segment, or listed with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.tito.records import VersionSpan
from sidecar.tito.segment_columns import version_spans
from sidecar.tito.segments import (
    NoSteps,
    SegmentPlan,
    finish_reason,
    plan_segments,
    untrainable_steps,
)
from sidecar.tito.trajectory import Trajectory, main_lineage
from tests.tito.columns import segment_arrays
from tests.tito.forests import trajectories
from tests.tito.test_trajectory import SUB, forest

ABORTED = {"state": "aborted", "delivered": False, "finish_reason": "aborted"}
LOST = {"delivered": False}
SAME = {"body_hash": b"same"}
RETRY = {"body_hash": b"same", "retry_count": 1}
ANY_FOREST = settings(deadline=None, max_examples=150)


def shown(plans: list[SegmentPlan]) -> list[str]:
    """`steps/trained reason`, the anchor with a star."""
    return [
        f"{'*' if plan.is_anchor else ''}{''.join(n.record.step_id for n in plan.nodes)}"
        f"/{''.join(sorted(plan.trained))} {plan.reason}"
        for plan in plans
    ]


class TestAnyForest:
    @ANY_FOREST
    @given(trajectories())
    def test_every_sampled_token_trains_once_or_its_step_has_a_reason(self, trajectory: Trajectory) -> None:
        reasons = untrainable_steps(trajectory)
        trained: dict[int, int] = {}
        for plan in plan_segments(trajectory):
            arrays = segment_arrays(plan)
            for token, mask in zip(arrays["tokens"], arrays["full_loss_mask"], strict=True):
                trained[token] = trained.get(token, 0) + mask
        for node in trajectory:
            expected = 0 if node.record.step_id in reasons else 1
            for token in node.record.output_ids.tolist():
                assert trained.get(token, 0) == expected, node.record.step_id
            for token in node.record.context_ids.tolist():
                assert trained.get(token, 0) == 0

    @ANY_FOREST
    @given(trajectories())
    def test_arrays_are_aligned_and_name_what_was_sampled(self, trajectory: Trajectory) -> None:
        sampled = {
            token: (logprob, version)
            for node in trajectory
            for token, logprob, version in zip(
                node.record.output_ids.tolist(),
                node.record.output_logprobs.tolist(),
                [s.version for s in node.record.version_spans for _ in range(s.start, s.end)],
                strict=True,
            )
        }
        for plan in plan_segments(trajectory):
            arrays = segment_arrays(plan)
            assert arrays["tokens"] == plan.leaf.token_ids().tolist()
            for token, _, logprob, version in zip(*arrays.values(), strict=True):
                assert (logprob, version) == sampled.get(token, (0.0, "-1"))

    @ANY_FOREST
    @given(trajectories())
    def test_the_anchor_is_one_and_last_and_holds_the_main_lineages_end(self, trajectory: Trajectory) -> None:
        plans = plan_segments(trajectory)
        assert [plan.is_anchor for plan in plans] == [False] * (len(plans) - 1) + [True]
        end = main_lineage(trajectory)[-1]
        assert end in plans[-1].nodes
        reasons = untrainable_steps(trajectory)
        expected = {node.record.step_id for node in plans[-1].nodes} - set(reasons)
        assert plans[-1].trained == expected

    @ANY_FOREST
    @given(trajectories(), st.data())
    def test_a_named_step_is_the_anchors_and_nothing_is_lost(
        self, trajectory: Trajectory, data: st.DataObject
    ) -> None:
        named = data.draw(st.sampled_from(list(trajectory)))
        plans = plan_segments(trajectory, named.record.step_id)
        assert named in plans[-1].nodes
        trained = [step_id for plan in plans for step_id in plan.trained]
        expected = {node.record.step_id for node in trajectory} - set(untrainable_steps(trajectory))
        assert sorted(trained) == sorted(expected)

    @ANY_FOREST
    @given(trajectories())
    def test_segments_are_in_order_and_none_but_the_anchor_is_without_use(self, trajectory: Trajectory) -> None:
        plans = plan_segments(trajectory)
        order = [plan.leaf.record.sequence for plan in plans[:-1]]
        assert order == sorted(order)
        reasons = untrainable_steps(trajectory)
        for plan in plans[:-1]:
            assert plan.leaf.record.step_id not in reasons
            assert plan.trained
        assert len({plan.leaf.record.step_id for plan in plans}) == len(plans)


class TestUntrainable:
    def reasons(self, *steps: Any) -> dict[str, str]:
        return untrainable_steps(forest(*steps))

    def test_steps_the_agent_has_train(self) -> None:
        assert self.reasons(("a", None), ("b", "a")) == {}

    def test_a_reply_that_was_not_delivered_does_not_train(self) -> None:
        assert self.reasons(("a", None), ("b", "a", LOST)) == {"b": "undelivered"}

    def test_an_undelivered_reply_that_was_continued_trains(self) -> None:
        assert self.reasons(("a", None, LOST), ("b", "a")) == {}

    def test_an_aborted_step_is_aborted_or_overtaken_by_its_retry(self) -> None:
        overtaken = {**ABORTED, "superseded_by": "c"}
        assert self.reasons(("a", None, ABORTED), ("b", None, overtaken), ("c", None)) == {
            "a": "aborted",
            "b": "overtaken",
        }

    def test_a_superseded_reply_is_overtaken_though_it_was_delivered(self) -> None:
        assert self.reasons(("a", None, {"superseded_by": "b"}), ("b", None)) == {"a": "overtaken"}

    def test_a_reason_known_at_commit_stays(self) -> None:
        changes = {"untrainable": "off_policy_sampling"}
        assert self.reasons(("a", None, changes), ("b", None, {**changes, **LOST})) == {
            "a": "off_policy_sampling",
            "b": "undelivered",
        }


class TestTwins:
    def test_twins_of_which_neither_was_continued_are_unresolved(self) -> None:
        trajectory = forest(("a", None, SAME), ("b", None, RETRY))
        assert untrainable_steps(trajectory) == {"a": "unresolved_retry", "b": "unresolved_retry"}
        [plan] = plan_segments(trajectory)
        assert plan.trained == set()

    def test_twins_without_a_marked_retry_are_samples(self) -> None:
        assert untrainable_steps(forest(("a", None, SAME), ("b", None, SAME))) == {}

    def test_a_twin_that_was_continued_resolves_both(self) -> None:
        assert untrainable_steps(forest(("a", None, SAME), ("b", None, RETRY), ("c", "b"))) == {}

    def test_equal_bodies_after_different_steps_are_no_twins(self) -> None:
        trajectory = forest(("a", None), ("b", "a", SAME), ("c", "b", RETRY))
        assert untrainable_steps(trajectory) == {}

    def test_a_twin_that_was_aborted_or_superseded_is_resolved(self) -> None:
        for settled in (ABORTED, {"superseded_by": "b"}):
            trajectory = forest(("a", None, {**SAME, **settled}), ("b", None, RETRY))
            assert set(untrainable_steps(trajectory)) == {"a"}

    def test_a_twins_earlier_reason_is_kept(self) -> None:
        trajectory = forest(("a", None, {**SAME, **LOST}), ("b", None, RETRY))
        assert untrainable_steps(trajectory) == {"a": "undelivered", "b": "unresolved_retry"}


class TestPlans:
    def test_a_straight_conversation_is_one_segment(self) -> None:
        assert shown(plan_segments(forest(("a", None), ("b", "a"), ("c", "b")))) == ["*abc/abc root"]

    def test_branches_share_their_beginning_which_trains_in_the_anchor(self) -> None:
        trajectory = forest(("a", None), ("b", "a"), ("c", "a"))
        assert shown(plan_segments(trajectory)) == ["ab/b root", "*ac/ac branch"]

    def test_without_the_anchor_a_shared_step_trains_in_the_first_segment_by_commit(self) -> None:
        trajectory = forest(("m", None), ("a", None, {"system_hash": SUB}), ("b", "a"), ("c", "a"), ("n", "m"))
        assert shown(plan_segments(trajectory)) == ["ab/ab root", "ac/c branch", "*mn/mn root"]

    @pytest.mark.parametrize(
        "reason", ["tools_changed", "stop_trimmed", "template_changed", "tokenizer_changed", "incremental_failed"]
    )
    def test_a_boundary_cuts_the_lineage_and_is_the_segments_reason(self, reason: str) -> None:
        trajectory = forest(("a", None), ("b", "a", {"segment_reason": reason}), ("c", "b"))
        plans = plan_segments(trajectory)
        assert shown(plans) == ["a/a root", f"*bc/bc {reason}"]
        assert [finish_reason(plan) for plan in plans] == ["segment_boundary", "stop"]

    def test_a_step_continued_both_ways_is_not_cut(self) -> None:
        trajectory = forest(("a", None), ("b", "a", {"segment_reason": "tools_changed"}), ("c", "a"))
        plans = plan_segments(trajectory)
        assert shown(plans) == ["b/b tools_changed", "*ac/ac root"]
        assert finish_reason(plans[1]) == "stop"

    def test_an_aborted_boundary_closes_nothing(self) -> None:
        trajectory = forest(("a", None), ("b", "a", {**ABORTED, "segment_reason": "tools_changed"}))
        [plan] = plan_segments(trajectory)
        assert finish_reason(plan) == "stop"

    def test_a_compaction_is_a_rewrite_of_history_and_the_anchor(self) -> None:
        trajectory = forest(("a", None), ("b", "a"), ("c", None), ("d", "c"))
        assert shown(plan_segments(trajectory)) == ["ab/ab root", "*cd/cd history_rewrite"]

    def test_a_sub_agent_is_a_root_and_never_the_anchor(self) -> None:
        trajectory = forest(("a", None), ("x", None, {"system_hash": SUB}), ("y", "x"))
        assert shown(plan_segments(trajectory)) == ["xy/xy root", "*a/a root"]

    def test_a_title_call_before_the_main_lineages_end_is_not_the_anchor(self) -> None:
        trajectory = forest(("a", None), ("t", None), ("b", "a"))
        assert shown(plan_segments(trajectory)) == ["t/t root", "*ab/ab root"]

    def test_a_named_step_makes_its_segment_the_anchor(self) -> None:
        trajectory = forest(("a", None), ("b", "a"), ("c", "a"), ("t", None, {"system_hash": SUB}))
        assert shown(plan_segments(trajectory, "t"))[-1] == "*t/t root"
        assert shown(plan_segments(trajectory, "b")) == ["ac/c root", "t/t root", "*ab/ab branch"]

    def test_a_named_step_inside_several_segments_anchors_the_first(self) -> None:
        trajectory = forest(("a", None), ("b", "a"), ("c", "a"))
        assert shown(plan_segments(trajectory, "a")) == ["ac/c root", "*ab/ab branch"]

    def test_a_named_step_that_is_unknown_is_an_error(self) -> None:
        with pytest.raises(KeyError, match="z"):
            plan_segments(forest(("a", None)), "z")

    def test_a_session_without_steps_has_nothing_to_train_on(self) -> None:
        with pytest.raises(NoSteps):
            plan_segments(Trajectory())


class TestUntrainableLeaves:
    def test_an_undelivered_leaf_ends_no_segment(self) -> None:
        trajectory = forest(("a", None), ("b", "a"), ("c", "b", LOST))
        assert shown(plan_segments(trajectory)) == ["*ab/ab root"]

    def test_aborted_siblings_of_a_trained_step_emit_nothing(self) -> None:
        trajectory = forest(("a", None), ("b", "a", ABORTED), ("c", "a"))
        assert shown(plan_segments(trajectory)) == ["*ac/ac root"]

    def test_trainable_steps_before_untrainable_leaves_are_emitted_once(self) -> None:
        trajectory = forest(
            ("m", None),
            ("a", None, {"system_hash": SUB}),
            ("b", "a"),
            ("c", "b", LOST),
            ("d", "b", ABORTED),
            ("n", "m"),
        )
        assert shown(plan_segments(trajectory)) == ["ab/ab root", "*mn/mn root"]

    def test_steps_that_a_longer_segment_holds_end_none_of_their_own(self) -> None:
        off = {"untrainable": "off_policy_sampling"}
        trajectory = forest(
            ("m", None), ("a", None, {"system_hash": SUB}), ("b", "a", off), ("c", "a"), ("d", "c", off), ("n", "m")
        )
        assert shown(plan_segments(trajectory)) == ["ac/ac root", "*mn/mn root"]

    def test_an_off_policy_last_step_is_context_at_the_end_of_the_anchor(self) -> None:
        trajectory = forest(("a", None), ("b", "a", {"untrainable": "off_policy_sampling"}))
        assert shown(plan_segments(trajectory)) == ["*ab/a root"]
        arrays = segment_arrays(plan_segments(trajectory)[0])
        assert arrays["full_loss_mask"] == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
        assert arrays["full_logprobs"][-2:] == [-0.25, -0.5]  # sampled, and so real
        assert arrays["full_versions"][-2:] == ["v1", "v1"]

    def test_a_session_that_delivered_nothing_still_has_an_anchor(self) -> None:
        [plan] = plan_segments(forest(("a", None, LOST)))
        assert plan.is_anchor
        assert plan.trained == set()

    def test_a_named_aborted_step_ends_the_anchor(self) -> None:
        trajectory = forest(("a", None), ("b", "a", ABORTED), ("c", "a"))
        plans = plan_segments(trajectory, "b")
        assert shown(plans) == ["ac/c root", "*ab/a branch"]
        assert finish_reason(plans[-1]) == "aborted"

    def test_an_aborted_step_without_a_sequence_comes_last(self) -> None:
        trajectory = forest(("a", None), ("b", "a", {**ABORTED, "sequence": None}), ("c", "a"))
        assert shown(plan_segments(trajectory)) == ["*ac/ac root"]


class TestVersions:
    def test_spans_are_runs_of_sampled_tokens_of_one_version(self) -> None:
        first = {"context_ids": [1], "output_ids": [7, 8, 9]}
        first["version_spans"] = (VersionSpan(0, 2, "7"), VersionSpan(2, 3, "8"))
        second = {"context_ids": [2], "output_ids": [7, 8], "version_spans": (VersionSpan(0, 2, "8"),)}
        third = {"context_ids": [], "output_ids": [7], "version_spans": (VersionSpan(0, 1, "8"),)}
        trajectory = forest(("a", None, first), ("b", "a", second), ("c", "b", third))
        assert version_spans(plan_segments(trajectory)[0]) == [
            {"start": 1, "end": 3, "version": "7"},
            {"start": 3, "end": 4, "version": "8"},
            {"start": 5, "end": 8, "version": "8"},
        ]

    def test_a_step_that_straddles_an_update_has_both_versions(self) -> None:
        spans = (VersionSpan(0, 1, "7"), VersionSpan(1, 3, "8"))
        trajectory = forest(("a", None, {"output_ids": [7, 8, 9], "version_spans": spans}))
        assert segment_arrays(plan_segments(trajectory)[0])["full_versions"] == ["-1"] * 3 + ["7", "8", "8"]

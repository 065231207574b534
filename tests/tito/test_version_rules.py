"""Which steps the version rules keep from training, and in which order versions were in force."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.tito.records import StepRecord, VersionSpan
from sidecar.tito.segment_columns import version_spans
from sidecar.tito.segments import TrainingRules, plan_segments, untrainable_steps
from sidecar.tito.version_rules import (
    VersionChanged,
    VersionRules,
    barred_by_version,
    check_same_version,
    versions_in_order,
)
from tests.tito.builders import step
from tests.tito.columns import segment_arrays
from tests.tito.test_trajectory import forest

UNKNOWN = "unknown"


def spans(*versions: str) -> tuple[VersionSpan, ...]:
    """A version for each sampled token."""
    return tuple(VersionSpan(i, i + 1, version) for i, version in enumerate(versions))


def sampled_by(*versions: str) -> dict[str, Any]:
    """Fields of a step whose tokens were sampled by these versions."""
    return {"output_ids": [*range(10, 10 + len(versions))], "version_spans": spans(*versions)}


def records(**versions: str) -> list[StepRecord]:
    """Steps by name, each sampled by the versions named with blanks between."""
    return [
        step(name, sequence=index, **sampled_by(*names.split()))
        for index, (name, names) in enumerate(versions.items())
    ]


class TestOrder:
    @pytest.mark.parametrize(
        ("steps", "order"),
        [
            ([], []),
            ([["1"], ["1"], ["2"]], ["1", "2"]),
            ([["9"], ["10"]], ["9", "10"]),  # no order of strings
            ([["7"], ["3"]], ["7", "3"]),  # nor of numbers
            ([["2"], ["1", "2"]], ["1", "2"]),  # committed later, begun earlier
            ([["3"], ["1", "2", "3"], ["4"]], ["1", "2", "3", "4"]),
            ([["1", "2"], ["2", "3"]], ["1", "2", "3"]),
            ([["1"], ["2"], ["1"]], ["1", "2"]),
        ],
        ids=str,
    )
    def test_versions_stand_in_the_order_in_which_they_were_in_force(
        self, steps: list[list[str]], order: list[str]
    ) -> None:
        assert versions_in_order(steps) == order

    @given(st.data())
    def test_a_run_of_versions_is_recovered_however_its_steps_overlap(self, data: st.DataObject) -> None:
        """Every version ends some step; steps that span several are committed when their last version samples."""
        count = data.draw(st.integers(1, 6))
        names = data.draw(st.permutations([str(n) for n in range(count)]))
        steps: list[list[str]] = []
        for last in range(count):
            firsts = data.draw(st.lists(st.integers(0, last), max_size=3))
            for first in data.draw(st.permutations([*firsts, last])):
                steps.append(list(names[first : last + 1]))
        assert versions_in_order(steps) == list(names)


class TestSpan:
    def test_the_newest_versions_of_the_session_train(self) -> None:
        steps = records(a="1", b="1 2", c="2", d="2 3", e="3")
        assert barred_by_version(steps, VersionRules(max_span=3)) == {}
        assert barred_by_version(steps, VersionRules(max_span=2)) == {"a": "version_span", "b": "version_span"}
        assert barred_by_version(steps, VersionRules(max_span=1)) == dict.fromkeys("abcd", "version_span")

    def test_a_step_that_spans_more_than_may_train_never_does(self) -> None:
        steps = records(a="1 2 3")
        assert barred_by_version(steps, VersionRules(max_span=2)) == {"a": "version_span"}
        assert barred_by_version(steps, VersionRules(max_span=3)) == {}

    def test_what_does_not_train_anyway_makes_nothing_old(self) -> None:
        trajectory = forest(
            ("a", None, sampled_by("1")),
            ("b", "a", sampled_by("2")),
            ("lost", "b", sampled_by("3") | {"delivered": False}),
        )
        rules = TrainingRules(versions=VersionRules(max_span=2))
        assert untrainable_steps(trajectory, rules) == {"lost": "undelivered"}

    def test_versions_that_are_not_known_count_for_nothing(self) -> None:
        steps = records(a="1", b=UNKNOWN, c=f"{UNKNOWN} 9", d="2")
        assert barred_by_version(steps, VersionRules(max_span=2)) == dict.fromkeys("bc", "version_unknown")

    def test_an_untrainable_step_keeps_its_tokens_logprobs_and_versions(self) -> None:
        trajectory = forest(("a", None, sampled_by("1")), ("b", "a", sampled_by("2", "2")))
        rules = TrainingRules(versions=VersionRules(max_span=1))
        [plan] = plan_segments(trajectory, rules=rules)
        arrays = segment_arrays(plan)
        assert arrays["full_versions"] == ["-1", "-1", "-1", "1", "-1", "-1", "-1", "2", "2"]
        assert arrays["full_loss_mask"] == [0, 0, 0, 0, 0, 0, 0, 1, 1]
        assert arrays["full_logprobs"][3] < 0


class TestUnknown:
    STEPS = records(a="1", b=f"1 {UNKNOWN}", c=UNKNOWN)

    def test_it_trains_where_nobody_asks_for_versions(self) -> None:
        assert barred_by_version(self.STEPS, VersionRules()) == {}

    @pytest.mark.parametrize("rules", [VersionRules(mask_nonlast=True), VersionRules(max_span=9)], ids=str)
    def test_it_does_not_where_a_rule_needs_them(self, rules: VersionRules) -> None:
        assert barred_by_version(self.STEPS, rules) == dict.fromkeys("bc", "version_unknown")

    def test_a_reason_that_was_there_before_stays(self) -> None:
        trajectory = forest(("a", None, sampled_by(UNKNOWN) | {"untrainable": "off_policy_sampling"}))
        rules = TrainingRules(versions=VersionRules(mask_nonlast=True))
        assert untrainable_steps(trajectory, rules) == {"a": "off_policy_sampling"}

    def test_masking_alone_bars_no_version(self) -> None:
        """Which tokens are of a sample's last version is for the trainer's hook to see, after its own cap."""
        assert barred_by_version(records(a="1", b="2"), VersionRules(mask_nonlast=True)) == {}


def test_the_example_of_partial_rollout_three_segments_over_three_versions() -> None:
    """The seeds' picture: segment 0 was sampled by w1 and w2, segment 1 by w2, segment 2 by w2 and w3."""
    boundary = {"segment_reason": "tools_changed"}
    trajectory = forest(
        ("a", None, sampled_by("w1", "w1", "w2")),
        ("b", "a", sampled_by("w2", "w2") | boundary),
        ("c", "b", sampled_by("w2", "w3", "w3") | boundary),
    )
    arrays = [segment_arrays(plan) for plan in plan_segments(trajectory)]
    assert [version_spans(plan) for plan in plan_segments(trajectory)] == [
        [{"start": 3, "end": 5, "version": "w1"}, {"start": 5, "end": 6, "version": "w2"}],
        [{"start": 3, "end": 5, "version": "w2"}],
        [{"start": 3, "end": 4, "version": "w2"}, {"start": 4, "end": 6, "version": "w3"}],
    ]
    for one in arrays:
        assert one["full_versions"][:3] == ["-1"] * 3
        assert one["full_loss_mask"] == [0, 0, 0] + [1] * (len(one["tokens"]) - 3)
    assert untrainable_steps(trajectory, TrainingRules(versions=VersionRules(max_span=2))) == {"a": "version_span"}


class TestOneVersion:
    def test_another_version_is_refused_by_name(self) -> None:
        with pytest.raises(VersionChanged, match=r"'s' has steps of weight version 1, and the engine is at 2"):
            check_same_version("s", ["1"], ["2"])

    @pytest.mark.parametrize(
        ("earlier", "now"), [([], ["1"]), (["1"], []), (["1"], ["1"]), ([UNKNOWN], ["1"]), (["1"], [UNKNOWN])]
    )
    def test_the_same_one_and_what_is_not_known_are_let_pass(self, earlier: list[str], now: list[str]) -> None:
        check_same_version("s", earlier, now)

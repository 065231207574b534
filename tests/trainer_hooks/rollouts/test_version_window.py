"""The order of weight versions, from what trajectories say of themselves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_hooks.rollouts.generators import dead, trajectory
from tests.trainer_hooks.rollouts.slime_process import PromptSource, rollout_args
from tests.trainer_hooks.slime_stand_in import Sample
from trainer_hooks.slime.rollouts.version_window import VersionWindow


def sample() -> Sample:
    return PromptSource(rollout_args(trajectory)).get_samples(1)[0][0]


def window_of(*sequences: tuple[str, ...], keep: int = 1) -> VersionWindow:
    window = VersionWindow(keep)
    for versions in sequences:
        window.observe(versions)
    return window


def test_versions_are_ordered_as_they_were_seen_and_never_as_numbers_or_words() -> None:
    assert window_of(("9",), ("10",), ("1",)).observed == ("9", "10", "1")


def test_a_version_that_turns_up_late_goes_before_its_successor() -> None:
    assert window_of(("1",), ("3",), ("2", "3")).observed == ("1", "2", "3")
    assert window_of(("4",), ("1", "2", "3", "4")).observed == ("1", "2", "3", "4")


def test_context_and_unknown_are_no_versions() -> None:
    assert window_of(("-1", "1", "unknown", "2")).observed == ("1", "2")


@given(seed=st.integers(), starts=st.lists(st.integers(0, 5), min_size=1))
def test_long_trajectories_give_the_true_order_in_whatever_order_they_end(seed: int, starts: list[int]) -> None:
    # random names, so that no order of names can help; each trajectory went on to the newest version
    names = [f"v{n}" for n in random.Random(seed).sample(range(1000), 6)]
    window = VersionWindow(1)
    for start in starts:
        window.observe(names[start:])
    assert list(window.observed) == names[min(starts) :]


@pytest.mark.parametrize(("keep", "fresh"), [(0, True), (1, False), (2, True)])
def test_a_group_is_fresh_while_every_live_run_ends_in_the_window(keep: int, fresh: bool) -> None:
    window = window_of(("1",), ("2",), ("3",), keep=keep)
    runs = [trajectory(sample(), versions=("1", "2")), trajectory(sample(), versions=("3",)), dead(sample())]
    assert window.is_fresh(runs) is fresh


def test_the_last_version_is_the_newest_over_all_segments() -> None:
    window = window_of(("1",), ("2",), ("3",))
    run = trajectory(sample(), versions=("1", "3")) + trajectory(sample(), versions=("2",))
    assert window.last_version(run) == "3"
    assert window.gap(run) == 0


def test_a_run_without_named_versions_is_not_fresh_unless_the_window_is_off() -> None:
    runs = [trajectory(sample(), versions=("unknown",))]
    assert not window_of(("1",), keep=3).is_fresh(runs)
    assert window_of(("1",), keep=0).is_fresh(runs)


def test_samples_of_a_plain_generate_function_name_their_last_version_too() -> None:
    plain = sample()
    plain.weight_versions = ["1", "2"]
    assert window_of(("1", "2")).last_version([plain]) == "2"

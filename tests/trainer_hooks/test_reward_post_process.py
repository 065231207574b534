"""Rewards to advantages: one value per trajectory, by group, on every segment."""

from __future__ import annotations

import logging
import statistics
from typing import Any

import pytest

from tests.trainer_hooks.batches import Run, flat_batch
from tests.trainer_hooks.builders import make_template
from tests.trainer_hooks.slime_stand_in import Sample, make_args
from trainer_hooks.slime.errors import RewardError, SettingError
from trainer_hooks.slime.reward_post_process import reward_post_process


def by_run(samples: list[Sample], values: list[float]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for sample, value in zip(samples, values, strict=True):
        found.setdefault(sample.rollout_id, []).append(value)
    return found


def test_grpo_normalises_over_trajectories_of_the_group_not_over_samples() -> None:
    runs = [Run(0, [2, 2, 2], 1.0), Run(0, [2], 0.0), Run(0, [2], 0.0), Run(1, [2, 2], 5.0), Run(1, [2], 3.0)]
    samples = flat_batch(runs)
    raw, processed = reward_post_process(make_args(), samples)
    assert raw == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 5.0, 3.0]
    mean, std = 1 / 3, statistics.stdev([1.0, 0.0, 0.0])
    advantages = by_run(samples, processed)
    assert advantages[0] == pytest.approx([(1 - mean) / (std + 1e-6)] * 3)
    assert advantages[1] == pytest.approx([-mean / (std + 1e-6)])
    assert advantages[3] == pytest.approx([1 / (statistics.stdev([5.0, 3.0]) + 1e-6)] * 2)
    assert advantages[4] == pytest.approx([-advantages[3][0]])


def test_groups_are_by_group_index_wherever_samples_stand() -> None:
    runs = [Run(0, [2], 1.0), Run(1, [2], 10.0), Run(0, [2], 3.0), Run(1, [2], 30.0)]
    _, processed = reward_post_process(make_args(grpo_std_normalization=False), flat_batch(runs))
    assert processed == [-1.0, -10.0, 1.0, 10.0]


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo"])
def test_these_estimators_divide_by_the_std(estimator: str) -> None:
    runs = [Run(0, [2], 4.0), Run(0, [2], 0.0)]
    _, divided = reward_post_process(make_args(advantage_estimator=estimator), flat_batch(runs))
    assert divided == pytest.approx([2 / (8**0.5 + 1e-6), -2 / (8**0.5 + 1e-6)])
    _, centred = reward_post_process(
        make_args(advantage_estimator=estimator, grpo_std_normalization=False), flat_batch(runs)
    )
    assert centred == [2.0, -2.0]


def test_the_reinforce_baseline_subtracts_the_mean_only() -> None:
    args = make_args(advantage_estimator="reinforce_plus_plus_baseline")
    _, processed = reward_post_process(args, flat_batch([Run(0, [2], 4.0), Run(0, [2, 1], 0.0)]))
    assert processed == [2.0, -2.0, -2.0]


@pytest.mark.parametrize("change", [{"advantage_estimator": "ppo"}, {"rewards_normalization": False}])
def test_without_normalisation_the_raw_reward_goes_to_every_segment(change: dict[str, Any]) -> None:
    raw, processed = reward_post_process(make_args(**change), flat_batch([Run(0, [2, 2], 4.0), Run(0, [2], 1.0)]))
    assert raw == [0.0, 4.0, 1.0]
    assert processed == [4.0, 4.0, 1.0]


def test_a_group_of_one_gives_zero() -> None:
    assert reward_post_process(make_args(), flat_batch([Run(0, [2, 2], 3.0)]))[1] == [0.0, 0.0]


def test_equal_rewards_give_exactly_zero() -> None:
    # The float mean of three 0.1 is not 0.1.
    assert reward_post_process(make_args(), flat_batch([Run(0, [2], 0.1)] * 3))[1] == [0.0] * 3


def test_removed_trajectories_stay_out_of_the_statistics() -> None:
    live = [Run(0, [2], 1.0), Run(0, [2], 0.0)]
    _, alone = reward_post_process(make_args(), flat_batch(live))
    raw, with_dead = reward_post_process(make_args(), flat_batch([*live, Run(0, [], dead=True)]))
    assert with_dead == [*alone, 0.0]
    assert raw == [1.0, 0.0, 0.0]


def test_a_removed_anchor_kills_its_segments() -> None:
    samples = flat_batch([Run(0, [2, 2], 8.0), Run(0, [2], 1.0), Run(0, [2], 3.0)])
    samples[1].remove_sample = True
    raw, processed = reward_post_process(make_args(grpo_std_normalization=False), samples)
    assert [s.remove_sample for s in samples] == [True, True, False, False]
    assert processed == [0.0, 0.0, -1.0, 1.0]
    assert raw == [0.0, 8.0, 1.0, 3.0]


def test_a_removed_inner_segment_leaves_the_others_alive() -> None:
    samples = flat_batch([Run(0, [2, 2], 1.0), Run(0, [2], 3.0)])
    samples[0].remove_sample = True
    _, processed = reward_post_process(make_args(grpo_std_normalization=False), samples)
    assert [s.remove_sample for s in samples] == [True, False, False]
    assert processed == [-1.0, -1.0, 1.0]


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf")])
def test_an_anchor_without_a_finite_reward_kills_its_trajectory_and_says_so(
    reward: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    samples = flat_batch([Run(0, [2, 2], reward), Run(0, [2], 1.0), Run(0, [2], 3.0)])
    with caplog.at_level(logging.WARNING):
        raw, processed = reward_post_process(make_args(grpo_std_normalization=False), samples)
    assert raw == [0.0, 0.0, 1.0, 3.0]
    assert processed == [0.0, 0.0, -1.0, 1.0]
    assert [s.remove_sample for s in samples] == [True, True, False, False]
    assert "trajectories_without_finite_reward=1 of 3" in caplog.text and "session_id=s0" in caplog.text


def test_dead_placeholders_are_not_reported_as_missing_rewards(caplog: pytest.LogCaptureFixture) -> None:
    reward_post_process(make_args(), flat_batch([Run(0, [2], 1.0), Run(0, [], dead=True)]))
    assert not caplog.records


def test_dict_rewards_are_read_by_the_key() -> None:
    args = make_args(reward_key="score", grpo_std_normalization=False)
    samples = flat_batch([Run(0, [2, 2], 1.0), Run(0, [2], 0.0), Run(0, [], dead=True)], args=args)
    raw, processed = reward_post_process(args, samples)
    assert raw == [0.0, 1.0, 0.0, 0.0]
    assert processed == [0.5, 0.5, -0.5, 0.0]


def test_a_dict_reward_that_holds_none_kills_its_trajectory() -> None:
    args = make_args(reward_key="score", grpo_std_normalization=False)
    samples = flat_batch([Run(0, [2], 1.0), Run(0, [2], 0.0)], args=args)
    samples[0].reward = {"score": None}
    assert reward_post_process(args, samples) == ([0.0, 0.0], [0.0, 0.0])
    assert [s.remove_sample for s in samples] == [True, False]


def test_a_reward_of_the_wrong_shape_is_a_setting_error_not_a_dead_run() -> None:
    samples = flat_batch([Run(0, [2], 1.0)])
    with pytest.raises(RewardError, match="reward_key is 'score'"):
        reward_post_process(make_args(reward_key="score"), samples)
    samples[0].reward = {"score": 1.0}
    with pytest.raises(RewardError, match="--reward-key"):
        reward_post_process(make_args(), samples)
    samples[0].reward = "good"
    with pytest.raises(RewardError, match="must be a number"):
        reward_post_process(make_args(), samples)


def test_more_than_one_anchor_is_an_error() -> None:
    samples = flat_batch([Run(0, [2, 2])])
    samples[0].metadata["is_anchor"] = True
    with pytest.raises(RewardError, match="more than one anchor"):
        reward_post_process(make_args(), samples)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("parent_traj_id", "another", r"parent_traj_id differs among its 2 samples: \['another', 's0'\]"),
        ("instance_id", "another", "instance_id differs"),
        ("segment_index", 1, "segment_index 1 occurs 2 times"),
    ],
)
def test_samples_that_cannot_be_segments_of_one_run_are_an_error(name: str, value: Any, message: str) -> None:
    samples = flat_batch([Run(0, [2, 2]), Run(0, [2], 0.0)])
    samples[0].metadata[name] = value
    with pytest.raises(RewardError, match=message):
        reward_post_process(make_args(), samples)


def test_one_run_in_two_groups_is_an_error() -> None:
    samples = flat_batch([Run(0, [2, 2])])
    samples[0].group_index = 5
    with pytest.raises(RewardError, match=r"group_index differs among its 2 samples: \[5, 0\]"):
        reward_post_process(make_args(), samples)


@pytest.mark.parametrize("segments", [[2], [2, 2]])
def test_no_anchor_is_an_error(segments: list[int]) -> None:
    samples = flat_batch([Run(0, segments)])
    samples[-1].metadata["is_anchor"] = False
    with pytest.raises(RewardError, match="no anchor"):
        reward_post_process(make_args(), samples)


def test_normalising_without_a_group_index_is_an_error_not_a_batch_wide_group() -> None:
    samples = [make_template(i, None, reward=1.0) for i in range(2)]
    with pytest.raises(RewardError, match="no group_index"):
        reward_post_process(make_args(), samples)


def test_samples_that_were_never_expanded_are_trajectories_of_their_own() -> None:
    samples = [make_template(i, 0, reward=float(i)) for i in range(2)]
    assert reward_post_process(make_args(grpo_std_normalization=False), samples)[1] == [-0.5, 0.5]


def test_arguments_under_which_training_goes_wrong_are_refused() -> None:
    with pytest.raises(SettingError, match="--log-passrate"):
        reward_post_process(make_args(log_passrate=True), flat_batch([Run(0, [2])]))

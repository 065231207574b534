"""Samples to slime's train data, key by key."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from tests.trainer_hooks.batches import Run, flat_batch
from tests.trainer_hooks.builders import make_template
from tests.trainer_hooks.slime_stand_in import ALWAYS_KEYS, Sample, check_train_data, make_args, token_weights
from trainer_hooks.slime.convert_samples import convert_samples_to_train_data
from trainer_hooks.slime.errors import ConversionError, SettingError

WORKED = [Run(1, [100], 1.0), Run(1, [150], 0.0), Run(2, [200], 1.0)]


def doubled(args: Any, samples: list[Sample]) -> tuple[list[float], list[float]]:
    return [10.0] * len(samples), [20.0] * len(samples)


def broken(args: Any, samples: list[Sample]) -> tuple[list[float], list[float]]:
    return [1.0], [1.0]


def not_finite(args: Any, samples: list[Sample]) -> tuple[list[float], list[float]]:
    return [1.0] * len(samples), [float("nan")] * len(samples)


@pytest.mark.parametrize("dead", [[], [Run(2, [], dead=True)]])
def test_the_worked_example_of_the_design(dead: list[Run]) -> None:
    data = convert_samples_to_train_data(make_args(global_batch_size=4), flat_batch([*WORKED, *dead]))
    assert data["rollout_mask_sums"][:3] == [125.0, 125.0, 100.0]


def test_the_worked_example_does_not_change_when_one_run_has_the_segments_of_two() -> None:
    runs = [Run(1, [100, 150], 1.0), Run(2, [120, 50, 30], 0.0), Run(1, [], dead=True), Run(2, [], dead=True)]
    data = convert_samples_to_train_data(make_args(global_batch_size=4), flat_batch(runs))
    assert data["rollout_mask_sums"][:5] == [125.0, 125.0, 100.0, 100.0, 100.0]


def test_every_key_that_slime_always_needs_is_there_and_passes_its_checks() -> None:
    samples = flat_batch([Run(0, [2, 3], 1.0), Run(0, [4], 0.0), Run(1, [1], 1.0), Run(1, [], dead=True)])
    samples[2].status = Sample.Status.TRUNCATED
    data = convert_samples_to_train_data(make_args(), samples)
    check_train_data(data)
    assert data.keys() == ALWAYS_KEYS | {"rollout_log_probs", "source_names"}
    assert data["sample_indices"] == [0, 0, 1, 2, 3]
    assert data["rollout_ids"] == [0, 0, 1, 2, 3]
    assert data["truncated"] == [0, 0, 1, 0, 0]
    assert data["raw_reward"] == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert data["response_lengths"] == [2, 3, 4, 1, 1]
    assert data["source_names"] == ["unknown"] * 5
    assert data["loss_masks"] == [[1, 1], [1, 1, 1], [1] * 4, [1], [0]]


def test_masks_are_final_before_denominators_are_computed() -> None:
    samples = flat_batch([Run(0, [4, 6], 1.0), Run(0, [5], 0.0)])
    samples[0].remove_sample = True
    data = convert_samples_to_train_data(make_args(global_batch_size=2), samples)
    assert data["loss_masks"][0] == [0] * 4
    assert data["rollout_mask_sums"] == [5.5, 5.5, 5.5]


def test_a_removed_anchor_masks_its_segments_also_under_another_reward_hook() -> None:
    samples = flat_batch([Run(0, [4, 6], 1.0), Run(0, [5], 0.0)])
    samples[1].remove_sample = True
    args = make_args(global_batch_size=2, custom_reward_post_process_path=f"{__name__}.doubled")
    data = convert_samples_to_train_data(args, samples)
    assert [sum(mask) for mask in data["loss_masks"]] == [0, 0, 5]


def test_a_trajectory_without_a_reward_is_masked() -> None:
    data = convert_samples_to_train_data(
        make_args(global_batch_size=2), flat_batch([Run(0, [4, 6], None), Run(0, [5], 1.0)])
    )
    assert [sum(mask) for mask in data["loss_masks"]] == [0, 0, 5]
    assert data["rollout_mask_sums"][2] == 2.5


def test_a_missing_mask_means_that_the_whole_response_trains() -> None:
    samples = [make_template(i, 0, tokens=[1, 2, 3], response_length=2, reward=float(i)) for i in range(2)]
    data = convert_samples_to_train_data(make_args(global_batch_size=2), samples)
    assert data["loss_masks"] == [[1, 1], [1, 1]]
    assert samples[0].loss_mask is None


def test_missing_rollout_ids_get_the_smallest_unused_integers_before_anything_is_counted() -> None:
    samples = flat_batch([Run(0, [1, 1], 1.0), Run(0, [1], 0.0), Run(1, [1], 1.0), Run(1, [1, 1], 0.0)])
    for position in (2, 4, 5):
        samples[position].rollout_id = None
    data = convert_samples_to_train_data(make_args(), samples)
    assert data["rollout_ids"] == [0, 0, 1, 2, 3, 3]
    assert samples[2].rollout_id is None


def test_samples_are_not_modified() -> None:
    samples = flat_batch([Run(0, [2, 3], 1.0), Run(0, [4], 0.0), Run(1, [1], 1.0), Run(1, [], dead=True)])
    before = copy.deepcopy(samples)
    convert_samples_to_train_data(make_args(), samples)
    assert samples == before


def test_steps_are_counted_on_their_own_by_default_and_together_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Run(0, [10], 1.0), Run(1, [30], 1.0), Run(0, [20], 0.0), Run(2, [40], 1.0)]
    args = make_args(global_batch_size=2)
    assert convert_samples_to_train_data(args, flat_batch(runs))["rollout_mask_sums"] == [10.0, 30.0, 20.0, 40.0]
    args.tito_prompt_equal_scope = "batch"
    whole = [45.0, 45.0, 45.0, 60.0]
    assert convert_samples_to_train_data(args, flat_batch(runs))["rollout_mask_sums"] == whole
    monkeypatch.setenv("TITO_PROMPT_EQUAL_SCOPE", "step")
    assert convert_samples_to_train_data(args, flat_batch(runs))["rollout_mask_sums"] != whole
    monkeypatch.setenv("TITO_PROMPT_EQUAL_SCOPE", "epoch")
    with pytest.raises(SettingError, match="TITO_PROMPT_EQUAL_SCOPE is 'epoch'"):
        convert_samples_to_train_data(args, flat_batch(runs))


@pytest.mark.parametrize(
    ("estimator", "sums"),
    [
        ("grpo", [20.0, 20.0, 20.0]),
        ("reinforce_plus_plus_baseline", [20.0, 20.0, 20.0]),
        ("gspo", [25.0, 25.0, 15.0]),
        ("cispo", [25.0, 25.0, 15.0]),
        ("ppo", [25.0, 25.0, 15.0]),
        ("reinforce_plus_plus", [25.0, 25.0, 15.0]),
    ],
)
def test_only_two_estimators_are_prompt_equal(estimator: str, sums: list[float]) -> None:
    args = make_args(global_batch_size=2, advantage_estimator=estimator)
    samples = flat_batch([Run(0, [10, 15], 1.0), Run(0, [15], 0.0)])
    assert convert_samples_to_train_data(args, samples)["rollout_mask_sums"] == sums


def test_reinforce_plus_plus_leaves_fully_masked_samples_out() -> None:
    runs = [Run(0, [2, 3], 1.0), Run(0, [], dead=True), Run(0, [4], 0.5)]
    args = make_args(global_batch_size=2, advantage_estimator="reinforce_plus_plus")
    data = convert_samples_to_train_data(args, flat_batch(runs))
    check_train_data(data)
    assert data["rollout_ids"] == [0, 0, 2]
    assert all(any(mask) for mask in data["loss_masks"])
    assert data["rewards"] == [1.0, 1.0, 0.5]


@pytest.mark.parametrize(("dead", "live"), [(1, 3), (4, 0)])
def test_reinforce_plus_plus_with_too_few_live_runs_for_a_step_says_so(dead: int, live: int) -> None:
    """slime's own assertion, which ends the training, does not tell that a dead run is the reason."""
    args = make_args(global_batch_size=4, advantage_estimator="reinforce_plus_plus")
    runs = [Run(0, [2], 1.0)] * live + [Run(0, [], dead=True)] * dead
    with pytest.raises(ConversionError, match=f"{live} of 4 runs have a trained token left"):
        convert_samples_to_train_data(args, flat_batch(runs))
    args.advantage_estimator = "reinforce_plus_plus_baseline"
    check_train_data(convert_samples_to_train_data(args, flat_batch(runs)))


def test_an_empty_batch_is_an_error() -> None:
    with pytest.raises(ConversionError, match="samples is empty"):
        convert_samples_to_train_data(make_args(), [])


def test_trailing_trajectories_that_slime_drops_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    runs = [Run(0, [2], 1.0), Run(0, [2], 0.0), Run(1, [2, 2], 1.0)]
    data = convert_samples_to_train_data(make_args(global_batch_size=2), flat_batch(runs))
    assert "trailing_trajectories_dropped=1 of 3" in caplog.text
    assert len(token_weights(data, 2)) == 1


def test_denominators_that_slime_clamps_are_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    runs = [Run(0, [1], 1.0), Run(0, [], dead=True), Run(0, [], dead=True), Run(0, [], dead=True)]
    with caplog.at_level(logging.ERROR):
        convert_samples_to_train_data(make_args(global_batch_size=4), flat_batch(runs))
    assert "denominators_below_one=1 of 4" in caplog.text


def test_the_named_reward_hook_is_called_instead_of_ours() -> None:
    args = make_args(global_batch_size=2, custom_reward_post_process_path=f"{__name__}.doubled")
    data = convert_samples_to_train_data(args, flat_batch([Run(0, [1], 1.0), Run(0, [1], 0.0)]))
    assert data["raw_reward"] == [10.0, 10.0] and data["rewards"] == [20.0, 20.0]


@pytest.mark.parametrize("path", ["nowhere.at_all", f"{__name__}.missing", "word"])
def test_a_reward_hook_that_cannot_be_imported_is_named(path: str) -> None:
    args = make_args(global_batch_size=1, custom_reward_post_process_path=path)
    with pytest.raises(SettingError, match=path):
        convert_samples_to_train_data(args, flat_batch([Run(0, [1])]))


@pytest.mark.parametrize(("hook", "message"), [("broken", "1 raw and 1 processed"), ("not_finite", "is nan")])
def test_what_the_reward_hook_returns_is_checked(hook: str, message: str) -> None:
    args = make_args(global_batch_size=1, custom_reward_post_process_path=f"{__name__}.{hook}")
    with pytest.raises(ConversionError, match=message):
        convert_samples_to_train_data(args, flat_batch([Run(0, [1, 1])]))


def test_raw_rewards_of_the_metadata_win_in_the_logs_only() -> None:
    samples = flat_batch([Run(0, [1], 1.0), Run(0, [1], 0.0)])
    samples[1].metadata["raw_reward"] = 0.5
    data = convert_samples_to_train_data(make_args(global_batch_size=2, grpo_std_normalization=False), samples)
    assert data["raw_reward"] == [1.0, 0.5]
    assert data["rewards"] == [0.5, -0.5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": []}, "response_length is 2 with 0 tokens"),
        ({"loss_mask": [1, 2]}, r"loss_mask\[1\] is 2; it must be 0 or 1"),
        ({"loss_mask": [-1, 1]}, r"loss_mask\[0\] is -1"),
        ({"loss_mask": [1, 0.5]}, r"loss_mask\[1\] is 0.5"),
        ({"loss_mask": [1]}, "loss_mask has 1 entries for response_length 2"),
        ({"response_length": 4, "loss_mask": [1] * 4}, "response_length is 4 with 4 tokens"),
        ({"response_length": 0, "loss_mask": []}, "response_length is 0"),
        ({"rollout_log_probs": [-1.0]}, "rollout_log_probs has 1 entries for response_length 2"),
    ],
)
def test_a_sample_whose_lengths_disagree_is_named(changes: dict[str, Any], message: str) -> None:
    samples = flat_batch([Run(0, [2], 1.0), Run(0, [2], 0.0)])
    for name, value in changes.items():
        setattr(samples[1], name, value)
    with pytest.raises(ConversionError, match=message) as error:
        convert_samples_to_train_data(make_args(global_batch_size=2), samples)
    assert "session_id=s1" in str(error.value)


def test_masks_of_booleans_are_masks() -> None:
    samples = flat_batch([Run(0, [2], 1.0), Run(0, [2], 0.0)])
    samples[0].loss_mask = [True, False]
    data = convert_samples_to_train_data(make_args(global_batch_size=2), samples)
    assert data["loss_masks"] == [[1, 0], [1, 1]] and type(data["loss_masks"][0][0]) is int


def test_a_sample_that_belongs_to_no_prompt_is_named() -> None:
    samples = flat_batch([Run(0, [2], 1.0), Run(0, [2], 0.0)])
    args = make_args(global_batch_size=2, rewards_normalization=False)
    samples[1].metadata["instance_id"] = None
    assert convert_samples_to_train_data(args, samples)["rollout_mask_sums"] == [2.0, 2.0], (
        "its group is its prompt"
    )
    samples[1].group_index = None
    with pytest.raises(
        ConversionError, match=r"rollout_id=1 .*neither metadata\['instance_id'\] nor a group_index"
    ):
        convert_samples_to_train_data(args, samples)


def test_arguments_under_which_training_goes_wrong_are_refused_whatever_the_reward_hook() -> None:
    args = make_args(calculate_per_token_loss=True, custom_reward_post_process_path=f"{__name__}.doubled")
    with pytest.raises(SettingError, match="--calculate-per-token-loss"):
        convert_samples_to_train_data(args, flat_batch([Run(0, [1])] * 4))


# Conditional keys --------------------------------------------------------------------------------------

CONDITIONAL = {
    "rollout_log_probs": ("rollout_log_probs", [-1.0]),
    "teacher_log_probs": ("teacher_log_probs", [-1.0]),
    "train_metadata": ("metadata", {"loss": "x"}),
    "rollout_routed_experts": ("rollout_routed_experts", [[[1, 2]], [[1, 2]]]),
}


def plain_batch(**fields: Any) -> list[Sample]:
    return [make_template(i, 0, tokens=[1, 2, 3], response_length=1, reward=0.0, **fields) for i in range(2)]


@pytest.mark.parametrize(("name", "key", "value"), [(n, k, v) for n, (k, v) in CONDITIONAL.items()])
def test_a_conditional_key_needs_all_samples_or_none(name: str, key: str, value: Any) -> None:
    args = make_args(global_batch_size=2)
    assert key not in convert_samples_to_train_data(args, plain_batch())
    assert convert_samples_to_train_data(args, plain_batch(**{name: value}))[key] == [value, value]
    for with_value in (0, 1):  # slime would look at the first only
        samples = plain_batch()
        setattr(samples[with_value], name, value)
        with pytest.raises(ConversionError, match=f"{name} is set on 1 of 2 samples"):
            convert_samples_to_train_data(args, samples)


def test_round_number_and_source_names_come_from_the_metadata() -> None:
    samples = plain_batch()
    for sample, source in zip(samples, ("web", None), strict=True):
        sample.metadata |= {"round_number": 3, "source_name": source}
    data = convert_samples_to_train_data(make_args(global_batch_size=2), samples)
    assert data["round_number"] == [3, 3] and data["source_names"] == ["web", "unknown"]
    del samples[0].metadata["round_number"]
    with pytest.raises(ConversionError, match="round_number"):
        convert_samples_to_train_data(make_args(global_batch_size=2), samples)


def test_samples_without_metadata_have_no_source_names() -> None:
    samples = plain_batch(metadata=None)
    data = convert_samples_to_train_data(make_args(global_batch_size=2), samples)
    assert "source_names" not in data
    samples[1].metadata = {}
    with pytest.raises(ConversionError, match="metadata is set on 1 of 2"):
        convert_samples_to_train_data(make_args(global_batch_size=2), samples)


def test_multimodal_inputs_may_be_mixed() -> None:
    samples = plain_batch()
    samples[1].multimodal_train_inputs = {"pixels": 1}
    data = convert_samples_to_train_data(make_args(global_batch_size=2), samples)
    assert data["multimodal_train_inputs"] == [None, {"pixels": 1}]


def test_top_p_sampling_is_refused_since_its_data_is_not_recorded() -> None:
    with pytest.raises(SettingError, match=r"--rollout-top-p is 0\.9"):
        convert_samples_to_train_data(make_args(global_batch_size=2, rollout_top_p=0.9), plain_batch())
    plain = convert_samples_to_train_data(make_args(global_batch_size=2), plain_batch(rollout_top_p_token_ids=[5]))
    assert "rollout_top_p_token_ids" not in plain

"""The worked examples of the two seed documents, with their numbers."""

from __future__ import annotations

import logging

import pytest

from tests.trainer_hooks.batches import Run, flat_batch
from tests.trainer_hooks.builders import make_segment, make_template
from tests.trainer_hooks.slime_stand_in import Sample, make_args, token_weights
from trainer_hooks.slime.batch.denominators import trajectory_denominators
from trainer_hooks.slime.convert_samples import convert_samples_to_train_data
from trainer_hooks.slime.reward_post_process import reward_post_process
from trainer_hooks.slime.samples import expand_segments_to_samples, mark_aborted_no_grad

C = "-1"


def session_of(counts: list[int], index: int = 0, reward: float | None = None) -> list[Sample]:
    segments = [
        make_segment([0] + [1] * count, index=i, session_id=f"s{index}", reward=reward)
        for i, count in enumerate(counts)
    ]
    return expand_segments_to_samples(make_template(index, 0), segments)


def test_a_session_of_500_300_and_200_tokens_trains_all_1000() -> None:
    samples = session_of([500, 300, 200])
    assert [s.response_length for s in samples] == [500, 300, 200]
    assert [s.reward for s in samples] == [0.0, 0.0, None], "the reward model fills the anchor's"
    assert {(s.rollout_id, s.metadata["parent_traj_id"]) for s in samples} == {(0, "s0")}
    samples[-1].reward = 1.0
    samples += session_of([100], 1, reward=0.0)
    data = convert_samples_to_train_data(make_args(global_batch_size=2, grpo_std_normalization=False), samples)
    assert [sum(mask) for mask in data["loss_masks"]] == [500, 300, 200, 100]


def test_the_anchors_advantage_is_broadcast_and_rewards_stay_sparse() -> None:
    samples = [*session_of([500, 300, 200], 0, 3.0), *session_of([100], 1, 1.0)]
    raw, advantages = reward_post_process(make_args(grpo_std_normalization=False), samples)
    assert raw == [0.0, 0.0, 3.0, 1.0]
    assert advantages == [1.0, 1.0, 1.0, -1.0]
    raw, rewards = reward_post_process(make_args(advantage_estimator="ppo"), samples)
    assert (raw, rewards) == ([0.0, 0.0, 3.0, 1.0], [3.0, 3.0, 3.0, 1.0]), "also where nothing is normalised"


def test_a_prompt_of_three_segments_does_not_count_three_times() -> None:
    samples = flat_batch([Run(0, [100, 100, 100], 1.0), Run(1, [100], 1.0)])
    args = make_args(global_batch_size=2, rewards_normalization=False)
    data = convert_samples_to_train_data(args, samples)
    assert data["rollout_mask_sums"] == [300.0, 300.0, 300.0, 100.0]
    (weights,) = token_weights(data, 2)
    first = {token for sample in samples[:3] for token in sample.tokens if token >= 1000}
    assert sum(weight for token, weight in weights.items() if token in first) == pytest.approx(0.5)
    # With a denominator per segment, as before rollout ids were shared, prompt A had three times B's gradient.
    per_segment = trajectory_denominators([100, 100, 100, 100], [0, 1, 2, 3]).values
    assert sum(100 / d for d in per_segment[:3]) == 3 * 100 / per_segment[3]


def test_denominators_are_m_p_times_n_p_over_gbs() -> None:
    """Global batch size 4: prompt 1 with masks 100 and 150, prompt 2 with 200."""
    runs = [Run(1, [100, 150], 1.0), Run(2, [200], 1.0), Run(1, [], dead=True), Run(2, [], dead=True)]
    data = convert_samples_to_train_data(make_args(global_batch_size=4), flat_batch(runs))
    assert data["rollout_mask_sums"][:3] == [(100 + 150) * 2 / 4, (100 + 150) * 2 / 4, 200 * 2 / 4]


def test_uneven_groups_are_normalised_by_group_and_not_over_the_batch() -> None:
    """A group whose rewards are all 1.0: slime's positional fallback gave its runs 0.4082 instead of 0."""
    runs = [Run(0, [2, 2], 1.0), Run(0, [2], 1.0), Run(1, [2], 1.0), Run(1, [2], 0.0)]
    _, advantages = reward_post_process(make_args(), flat_batch(runs))
    assert advantages[:3] == [0.0, 0.0, 0.0]
    assert advantages[3] == pytest.approx(-advantages[4]) and advantages[3] > 0


def test_three_segments_over_three_weight_versions() -> None:
    """Segment 0 spans w1 and w2, segment 1 is of w2, segment 2 spans w2 and w3."""
    versions = [[C, "w1", "w2"], [C, "w2", "w2"], [C, "w2", "w3"]]
    segments = [make_segment("011", index=i, versions=v) for i, v in enumerate(versions)]
    samples = expand_segments_to_samples(make_template(), segments)
    assert [s.metadata.get("dressage_partial_rollout") for s in samples] == [True, None, True]
    assert [s.metadata["dressage_start_token_version"] for s in samples] == ["w1", "w2", "w2"]
    assert [s.metadata["dressage_end_token_version"] for s in samples] == ["w2", "w2", "w3"]
    assert [s.metadata["full_versions"] for s in samples] == versions
    assert samples[0].metadata["version_spans"] == [
        {"start": 1, "end": 2, "version": "w1"},
        {"start": 2, "end": 3, "version": "w2"},
    ]
    masked = [segment | {"extra_info": {"mask_nonlast_version_tokens": True}} for segment in segments]
    assert [s.loss_mask for s in expand_segments_to_samples(make_template(), masked)] == [[0, 1], [1, 1], [0, 1]]


def test_the_sampled_ids_are_trained_and_not_those_of_the_same_text() -> None:
    """ "大大的一块" was sampled as 68249, 23582; encoding the text again would give 19983, 110697."""
    segment = make_segment(
        "0011",
        tokens=[11, 12, 68249, 23582],
        messages=[{"role": "user", "content": "请描述这块年糕。"}, {"role": "assistant", "content": "大大的一块"}],
    )
    (sample,) = expand_segments_to_samples(make_template(), [segment])
    assert sample.tokens[-sample.response_length :] == [68249, 23582]
    assert sample.response == "大大的一块"


def test_only_what_the_policy_did_is_an_action() -> None:
    """System prompt, user and observation are state; thought, tool call and answer are actions."""
    system, user, thought, tool, observation, answer = ([i] * 2 for i in range(1, 7))
    segment = make_segment([0] * 12, tokens=[*system, *user, *thought, *tool, *observation, *answer])
    segment["full_loss_mask"] = [0] * 4 + [1] * 4 + [0] * 2 + [1] * 2
    segment["full_logprobs"] = [-0.5 * m for m in segment["full_loss_mask"]]
    segment["full_versions"] = ["1" if m else C for m in segment["full_loss_mask"]]
    (sample,) = expand_segments_to_samples(make_template(), [segment])
    trained = [t for t, m in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True) if m]
    assert trained == [*thought, *tool, *answer]


def test_a_trajectory_that_failed_leaves_a_sample_without_gradient(caplog: pytest.LogCaptureFixture) -> None:
    live = flat_batch([Run(0, [3], 1.0), Run(0, [4, 2], 0.0)])
    dead = mark_aborted_no_grad(make_template(2, 0, metadata={"instance_id": "task-0"}))
    with caplog.at_level(logging.WARNING):
        data = convert_samples_to_train_data(make_args(global_batch_size=3), [*live, dead])
    assert data["loss_masks"][-1] == [0] and data["rewards"][-1] == 0.0
    assert sum(token_weights(data, 3)[0].values()) == pytest.approx(1.0)
    assert not caplog.records


def test_a_capped_segment_is_told_apart_from_one_that_the_length_limit_ended() -> None:
    """`max_tokens_per_gpu * context_parallel_size` tokens fit; `finish_reason: "length"` alone is TRUNCATED."""
    args = make_args(max_tokens_per_gpu=4, context_parallel_size=2)
    capped, ended = (
        expand_segments_to_samples(make_template(), [make_segment("0" + "1" * n, finish_reason=reason)], args=args)[
            0
        ]
        for n, reason in ((11, "stop"), (5, "length"))
    )
    assert len(capped.tokens) == 8
    assert (capped.metadata.get("truncated"), capped.status) == (True, Sample.Status.COMPLETED)
    assert (ended.metadata.get("truncated"), ended.status) == (None, Sample.Status.TRUNCATED)

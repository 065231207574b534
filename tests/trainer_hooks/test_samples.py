"""Expanding a session's segments into samples, rule by rule."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest

from tests.trainer_hooks.builders import dirty_template, make_segment, make_template
from tests.trainer_hooks.slime_stand_in import Sample, check_rollout_ids_annotated, flatten, make_args
from trainer_hooks.slime.errors import RewardError, SegmentError, SettingError
from trainer_hooks.slime.samples import expand_segments_to_samples, write_sample_from_segment


def test_response_starts_at_the_first_trained_token_and_runs_to_the_end() -> None:
    (sample,) = expand_segments_to_samples(make_template(), [make_segment("00110010")])
    assert sample.tokens == list(range(100, 108))
    assert sample.response_length == 6
    assert sample.loss_mask == [1, 1, 0, 0, 1, 0]
    assert sample.rollout_log_probs == [-3 / 8, -4 / 8, 0.0, 0.0, -7 / 8, 0.0]


def test_sampled_but_masked_tokens_keep_their_real_logprob() -> None:
    segment = make_segment("0010", full_logprobs=[0.0, -0.5, -0.25, -0.125], full_versions=["-1", "1", "1", "1"])
    (sample,) = expand_segments_to_samples(make_template(), [segment])
    assert sample.rollout_log_probs == [-0.25, -0.125]
    assert sample.loss_mask == [1, 0]


def test_values_are_plain_python_whatever_the_segment_held() -> None:
    segment = make_segment("0011")
    for name, dtype in (("tokens", np.int32), ("full_loss_mask", np.uint8), ("full_logprobs", np.float32)):
        segment[name] = np.asarray(segment[name], dtype=dtype)
    (sample,) = expand_segments_to_samples(make_template(), [segment])
    for values, kind in ((sample.tokens, int), (sample.loss_mask, int), (sample.rollout_log_probs, float)):
        assert type(values) is list and {type(value) for value in values} == {kind}


def test_segments_come_out_in_order_of_index_with_the_anchor_last() -> None:
    segments = [make_segment(index=i, first_token=100 * i) for i in (2, 0, 1)]
    samples = expand_segments_to_samples(make_template(index=7), segments)
    assert [s.metadata["segment_index"] for s in samples] == [0, 1, 2]
    assert [s.metadata["is_anchor"] for s in samples] == [False, False, True]
    assert {s.rollout_id for s in samples} == {7}
    assert {s.metadata["parent_traj_id"] for s in samples} == {"s1"}
    assert {s.metadata["instance_id"] for s in samples} == {"task"}


def test_fan_out_passes_slimes_checks_of_nesting_and_rollout_ids() -> None:
    groups = [
        [
            expand_segments_to_samples(
                make_template(index=g * 2 + r, group_index=g), [make_segment(index=i) for i in range(g + 1)]
            )
            for r in range(2)
        ]
        for g in range(2)
    ]
    check_rollout_ids_annotated(groups)
    assert len(flatten(groups)) == 6


def test_everything_an_earlier_try_left_is_replaced() -> None:
    (sample,) = expand_segments_to_samples(dirty_template(), [make_segment("011")], args=make_args())
    (fresh,) = expand_segments_to_samples(make_template(), [make_segment("011")], args=make_args())
    assert sample.to_dict() == fresh.to_dict()
    assert sample.metadata["image"] == "img"
    assert sample.remove_sample is False
    assert sample.weight_versions == ["1"]


def test_the_template_is_never_modified_and_nothing_is_shared_with_it() -> None:
    template = dirty_template(prompt=[{"role": "user", "content": "q"}], train_metadata={"loss": {"kind": "a"}})
    template.metadata["nested"] = {"value": 1}
    before = copy.deepcopy(template)
    samples = expand_segments_to_samples(template, [make_segment(index=0), make_segment(index=1)])
    samples[0].prompt[0]["content"] = "changed"
    samples[0].train_metadata["loss"]["kind"] = "changed"
    samples[0].metadata["nested"]["value"] = 2
    samples[0].metadata["full_versions"].append("x")
    samples[0].tokens.append(1)
    assert template == before
    assert samples[1].prompt == before.prompt and samples[1].train_metadata == before.train_metadata
    assert samples[1].metadata["nested"] == {"value": 1}


def test_a_failing_expansion_leaves_the_template_as_it_was() -> None:
    template = dirty_template()
    before = copy.deepcopy(template)
    with pytest.raises(SegmentError):
        expand_segments_to_samples(template, [make_segment(index=0), make_segment(index=1, full_logprobs=[])])
    assert template == before


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("answer", "answer"),
        (None, ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
    ],
)
def test_response_is_the_last_assistant_text_and_always_a_string(content: object, text: str) -> None:
    messages = [
        {"role": "assistant", "content": "earlier"},
        {"role": "tool", "content": "result"},
        {"role": "assistant", "content": content},
        {"role": "tool", "content": "later"},
    ]
    (sample,) = expand_segments_to_samples(make_template(), [make_segment(messages=messages)])
    assert sample.response == text


def test_response_is_empty_without_an_assistant_message() -> None:
    (sample,) = expand_segments_to_samples(make_template(), [make_segment(messages=[])])
    assert sample.response == ""


@pytest.mark.parametrize(
    ("finish_reason", "status"),
    [
        ("length", Sample.Status.TRUNCATED),
        ("stop", Sample.Status.COMPLETED),
        ("tool_calls", Sample.Status.COMPLETED),
        ("segment_boundary", Sample.Status.COMPLETED),
    ],
)
def test_status_is_truncated_only_for_finish_reason_length(finish_reason: str, status: Sample.Status) -> None:
    (sample,) = expand_segments_to_samples(make_template(), [make_segment(finish_reason=finish_reason)])
    assert sample.status is status


# Reward ------------------------------------------------------------------------------------------------


def test_only_the_anchor_carries_the_finalized_reward() -> None:
    segments = [make_segment(index=i, reward=0.75) for i in range(3)]
    assert [s.reward for s in expand_segments_to_samples(make_template(), segments)] == [0.0, 0.0, 0.75]


def test_without_a_finalized_reward_the_anchor_waits_for_slimes_reward_model() -> None:
    segments = [make_segment(index=i) for i in range(2)]
    assert [s.reward for s in expand_segments_to_samples(make_template(), segments)] == [0.0, None]


def test_reward_zero_counts_as_given() -> None:
    (sample,) = expand_segments_to_samples(make_template(), [make_segment(reward=0)])
    assert sample.reward == 0 and sample.reward is not None


def test_rewards_are_dicts_under_a_reward_key() -> None:
    args = make_args(reward_key="score")
    segments = [make_segment(index=i, reward=0.5) for i in range(2)]
    assert [s.reward for s in expand_segments_to_samples(make_template(), segments, args=args)] == [
        {"score": 0.0},
        {"score": 0.5},
    ]
    (sample,) = expand_segments_to_samples(
        make_template(), [make_segment(reward={"score": 1.0, "x": 2})], args=args
    )
    assert sample.get_reward_value(args) == 1.0


@pytest.mark.parametrize("key", [None, "other"])
def test_a_dict_reward_that_slime_could_not_read_is_refused(key: str | None) -> None:
    with pytest.raises(RewardError, match="reward-key"):
        expand_segments_to_samples(
            make_template(), [make_segment(reward={"score": 1.0})], args=make_args(reward_key=key)
        )


# The cap and nothing left to train ---------------------------------------------------------------------


def test_the_cap_cuts_first_and_is_told_in_the_metadata() -> None:
    args = make_args(max_tokens_per_gpu=3, context_parallel_size=2)
    (sample,) = expand_segments_to_samples(make_template(), [make_segment("00111111")], args=args)
    assert len(sample.tokens) == 6
    assert sample.response_length == 4
    assert sample.metadata["truncated"] is True
    assert sample.status is Sample.Status.COMPLETED
    (whole,) = expand_segments_to_samples(make_template(), [make_segment("001111")], args=args)
    assert "truncated" not in whole.metadata


def test_the_cap_uses_cp_size_where_there_is_no_context_parallel_size() -> None:
    args = make_args(max_tokens_per_gpu=2, context_parallel_size=None, cp_size=2)
    (sample,) = expand_segments_to_samples(make_template(), [make_segment("00111111")], args=args)
    assert len(sample.tokens) == 4


def test_a_cap_below_one_is_refused() -> None:
    with pytest.raises(SettingError, match="max_tokens_per_gpu is 0"):
        expand_segments_to_samples(make_template(), [make_segment()], args=make_args(max_tokens_per_gpu=0))


def test_a_segment_with_nothing_to_train_is_dropped_unless_it_is_the_anchor() -> None:
    segments = [
        make_segment("0000", index=0),
        make_segment("0011", index=1),
        make_segment("0000", index=2, reward=1.0),
    ]
    live, anchor = expand_segments_to_samples(make_template(), segments)
    assert live.metadata["segment_index"] == 1
    assert (anchor.response_length, anchor.loss_mask, anchor.rollout_log_probs) == (1, [0], [0.0])
    assert anchor.metadata["is_anchor"] and anchor.reward == 1.0 and anchor.tokens == [100, 101, 102, 103]
    assert anchor.status is Sample.Status.COMPLETED and not anchor.remove_sample


def test_the_cap_can_take_the_last_trained_token_away() -> None:
    args = make_args(max_tokens_per_gpu=3)
    segments = [make_segment("0001", index=0), make_segment("0111", index=1), make_segment("0001", index=2)]
    live, anchor = expand_segments_to_samples(make_template(), segments, args=args)
    assert live.metadata["segment_index"] == 1
    assert anchor.loss_mask == [0] and anchor.tokens == [100, 101, 102] and anchor.metadata["truncated"]


def test_a_session_with_nothing_to_train_becomes_one_aborted_sample() -> None:
    template = make_template()
    (dead,) = expand_segments_to_samples(template, [make_segment("000", index=0), make_segment("00", index=1)])
    assert dead.status is Sample.Status.ABORTED and dead.remove_sample
    assert dead.metadata["parent_traj_id"] == "s1"
    assert dead.metadata["abort_reason"] == "nothing_trainable"
    assert template.session_id is None
    assert template.metadata["last_failed_session_id"] == "s1"


def test_a_live_session_never_contains_an_aborted_sample() -> None:
    segments = [make_segment("0011", index=0), make_segment("000", index=1, finish_reason="aborted")]
    samples = expand_segments_to_samples(make_template(), segments)
    assert all(sample.status is not Sample.Status.ABORTED for sample in samples)


# One segment -------------------------------------------------------------------------------------------


def test_write_sample_fills_the_given_sample_and_leaves_ids_and_reward_alone() -> None:
    sample = dirty_template(reward=None)
    sample.metadata["parent_traj_id"] = "kept"
    shared = sample.metadata
    assert write_sample_from_segment(sample, make_segment("011")) is sample
    assert sample.tokens == [100, 101, 102] and sample.response_length == 2
    assert sample.rollout_id == 99 and sample.reward is None
    assert sample.metadata["parent_traj_id"] == "kept"
    assert "truncated" not in sample.metadata
    assert shared["truncated"] is True, "a metadata dict that others may share is replaced, not modified"


def test_write_sample_with_nothing_to_train_masks_the_last_token() -> None:
    sample = write_sample_from_segment(make_template(), make_segment("000"))
    assert (sample.response_length, sample.loss_mask, sample.rollout_log_probs) == (1, [0], [0.0])


def test_importing_the_samples_module_stays_light() -> None:
    code = (
        "import sys, trainer_hooks.slime.samples, trainer_hooks.slime.convert_samples, trainer_hooks.client\n"
        "import trainer_hooks.slime.filters, trainer_hooks.slime.log_helpers\n"
        "heavy = {'mitmproxy', 'starlette', 'uvicorn', 'transformers', 'torch', 'slime', 'sqlalchemy', 'sidecar'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"

"""Routing replay: shapes on samples, on placeholders and at conversion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.trainer_hooks.builders import make_segment, make_template
from tests.trainer_hooks.slime_stand_in import check_replay, check_train_data, make_args
from trainer_hooks.slime.convert_samples import convert_samples_to_train_data
from trainer_hooks.slime.errors import ConversionError, SegmentError, SettingError
from trainer_hooks.slime.samples import expand_segments_to_samples, mark_aborted_no_grad

LAYERS, TOPK = 3, 2


def replay_args(**changes: Any) -> Any:
    replay = {"use_rollout_routing_replay": True, "num_layers": LAYERS, "moe_router_topk": TOPK}
    return make_args(**(replay | changes))


def rows(count: int, *, layers: int = LAYERS, topk: int = TOPK) -> np.ndarray:
    return np.arange(1, count * layers * topk + 1).reshape(count, layers, topk)


@pytest.mark.parametrize("as_lists", [False, True])
def test_rows_are_int32_and_follow_the_cap(as_lists: bool) -> None:
    experts = rows(5)
    segment = make_segment("001111", routed_experts=experts.tolist() if as_lists else experts)
    (sample,) = expand_segments_to_samples(make_template(), [segment], args=replay_args(max_tokens_per_gpu=4))
    assert sample.rollout_routed_experts.dtype == np.int32
    assert np.array_equal(sample.rollout_routed_experts, experts[:3])
    check_replay(sample.rollout_routed_experts, replay_args())


def test_without_args_the_rows_are_written() -> None:
    (sample,) = expand_segments_to_samples(make_template(), [make_segment("0011", routed_experts=rows(3))])
    assert sample.rollout_routed_experts.shape == (3, LAYERS, TOPK)


def test_a_trainer_without_replay_gets_no_rows() -> None:
    segment = make_segment("0011", routed_experts=rows(3))
    (sample,) = expand_segments_to_samples(make_template(), [segment], args=make_args())
    assert sample.rollout_routed_experts is None


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (rows(4), r"shape \(4, 3, 2\)"),
        (rows(3, layers=2), r"shape \(3, 2, 2\)"),
        (rows(3, topk=1), r"shape \(3, 3, 1\)"),
        (rows(3)[:, :, 0], r"shape \(3, 3\)"),
        (rows(3) / 2, "expert ids are integers"),
        ([[[1, 2]], [[1]]], "not a regular array"),
        (None, "routed_experts is missing"),
    ],
)
def test_rows_of_another_shape_are_refused(experts: Any, message: str) -> None:
    with pytest.raises(SegmentError, match=message):
        expand_segments_to_samples(
            make_template(), [make_segment("0011", routed_experts=experts)], args=replay_args()
        )


def test_the_placeholder_has_one_row_that_slime_accepts() -> None:
    dead = mark_aborted_no_grad(make_template(), args=replay_args())
    assert dead.rollout_routed_experts.tolist() == [[[0, 1]] * LAYERS]
    assert dead.rollout_routed_experts.dtype == np.int32
    check_replay(dead.rollout_routed_experts, replay_args())


def test_the_placeholder_needs_the_shape_under_replay() -> None:
    with pytest.raises(SettingError, match="num_layers is None"):
        mark_aborted_no_grad(make_template(), args=replay_args(num_layers=None))


def batch(live_rows: Any, args: Any) -> list[Any]:
    segment = make_segment("0011", reward=1.0, session_id="s0", routed_experts=live_rows)
    return [
        *expand_segments_to_samples(make_template(0), [segment], args=args),
        mark_aborted_no_grad(make_template(1), args=args),
    ]


def test_live_and_dead_samples_convert_together() -> None:
    args = replay_args(global_batch_size=2)
    data = convert_samples_to_train_data(args, batch(rows(3), args))
    check_train_data(data)
    assert [experts.shape for experts in data["rollout_routed_experts"]] == [(3, 3, 2), (1, 3, 2)]


def test_conversion_refuses_a_layer_that_was_not_captured() -> None:
    args = replay_args(global_batch_size=2)
    silent = rows(3)
    silent[:, 1, :] = 0
    with pytest.raises(ConversionError, match=r"all zero in MoE layers \[1\]"):
        convert_samples_to_train_data(args, batch(silent, args))
    args.moe_layer_freq = [1, 0, 1]
    convert_samples_to_train_data(args, batch(silent, args))


def test_conversion_refuses_rows_that_do_not_fit_the_tokens() -> None:
    args = replay_args(global_batch_size=2)
    samples = batch(rows(3), args)
    samples[0].rollout_routed_experts = samples[0].rollout_routed_experts[:2]
    with pytest.raises(ConversionError, match=r"shape \(2, 3, 2\); expected \(3, 3, 2\)"):
        convert_samples_to_train_data(args, samples)


def test_conversion_refuses_replay_without_rows() -> None:
    samples = batch(None, make_args())
    with pytest.raises(ConversionError, match="no sample has rollout_routed_experts"):
        convert_samples_to_train_data(replay_args(global_batch_size=2), samples)


def test_one_expert_per_token_may_be_expert_zero() -> None:
    args = replay_args(global_batch_size=2, moe_router_topk=1)
    convert_samples_to_train_data(args, batch(np.zeros((3, LAYERS, 1), dtype=int), args))

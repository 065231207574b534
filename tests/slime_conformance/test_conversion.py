"""Our train data through slime's rollout manager: to tensors, to ranks, and beside its own conversion."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.slime_conformance.checkout import slime_module
from tests.slime_conformance.trainer import micro_batches, rollout_manager, slime_args, split_by_rank
from tests.trainer_hooks.conversations import Conversation, conversations, cut, samples_of
from trainer_hooks.slime.batch.denominators import optimizer_steps
from trainer_hooks.slime.reward_post_process import reward_post_process
from trainer_hooks.slime.samples import mark_aborted_no_grad

Sample = slime_module("slime.utils.types").Sample
build_dp_schedule = slime_module("slime.utils.dp_schedule").build_dp_schedule
slime_module("slime.ray.rollout")
torch = pytest.importorskip("torch")

SETTINGS = settings(max_examples=30, deadline=None)

RUNS = [
    Conversation(0, [([1, 2], [3, 4]), ([5], [6, 7])], 1.0, [1]),
    Conversation(0, [([1, 2], [8, 9, 10])], 0.0),
    Conversation(1, [([3], [4]), ([5], [6]), ([7], [8])], 1.0, [1, 2]),
]


def flat(runs: list[Conversation], *, dead: int = 0, args: Any = None) -> list[Any]:
    """Samples of slime's own type, some dead ones at the end."""
    samples = [sample for run in samples_of(runs, sample_type=Sample, args=args) for sample in run]
    return samples + [
        mark_aborted_no_grad(Sample(index=50 + n, group_index=1, metadata={"instance_id": "task-1"}), args=args)
        for n in range(dead)
    ]


def whole_groups(seed: int, **fields: Any) -> list[Any]:
    """Two groups of three single-segment runs: the one shape in which slime's own baseline is right."""
    rng = np.random.default_rng(seed)
    runs = [Conversation(n // 3, [([1], [2, 3])], float(rng.normal())) for n in range(6)]
    return flat(runs)


def test_every_rank_gets_tensors_of_slimes_types_and_each_sample_once(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = rollout_manager(slime_args(global_batch_size=4), dp_size=2)
    data = manager._convert_samples_to_train_data(flat(RUNS, dead=1))
    ranks = split_by_rank(manager, data, monkeypatch)
    assert sorted(position for rank in ranks for position in rank["partition"]) == list(range(len(data["tokens"])))
    types = {
        "tokens": torch.long,
        "loss_masks": torch.int,
        "rollout_log_probs": torch.float32,
    }
    for rank in ranks:
        assert rank["rollout_mask_sums"].dtype == torch.float32
        for key, dtype in types.items():
            assert {value.dtype for value in rank[key]} == {dtype}
        for place, position in enumerate(rank["partition"]):
            assert rank["loss_masks"][place].tolist() == data["loss_masks"][position]
            assert float(rank["rollout_mask_sums"][place]) == data["rollout_mask_sums"][position]
            assert rank["rewards"][place] == data["rewards"][position]
        assert len(micro_batches(rank)) == 1


def test_apart_from_rewards_and_denominators_the_data_is_what_slime_makes() -> None:
    samples = flat(RUNS, dead=1)
    for sample in samples:
        sample.reward = sample.reward or 0.0
    ours = rollout_manager(slime_args(global_batch_size=4))._convert_samples_to_train_data(copy.deepcopy(samples))
    bare = slime_args(custom_convert_samples_to_train_data_path=None, custom_reward_post_process_path=None)
    theirs = rollout_manager(bare)._convert_samples_to_train_data(copy.deepcopy(samples))
    assert ours.keys() == theirs.keys()
    for key in theirs.keys() - {"rewards", "rollout_mask_sums"}:
        assert ours[key] == theirs[key], key


@pytest.mark.parametrize("estimator", ["gspo", "cispo", "ppo"])
def test_denominators_of_other_estimators_are_slimes(estimator: str) -> None:
    samples = flat(RUNS, dead=1)
    args = slime_args(advantage_estimator=estimator, global_batch_size=4)
    ours = rollout_manager(args)._convert_samples_to_train_data(copy.deepcopy(samples))
    bare = copy.copy(args)
    bare.custom_convert_samples_to_train_data_path = None
    theirs = rollout_manager(bare)._convert_samples_to_train_data(copy.deepcopy(samples))
    assert ours["rollout_mask_sums"] == theirs["rollout_mask_sums"]


def test_missing_rollout_ids_are_filled_as_slime_fills_them() -> None:
    samples = [
        Sample(index=i, group_index=0, tokens=[1, 2], response_length=1, reward=1.0, rollout_id=rollout_id)
        for i, rollout_id in enumerate([None, 1, None, 0, None])
    ]
    ours = rollout_manager(slime_args())._convert_samples_to_train_data(copy.deepcopy(samples))
    bare = slime_args(custom_convert_samples_to_train_data_path=None, custom_reward_post_process_path=None)
    theirs = rollout_manager(bare)._convert_samples_to_train_data(copy.deepcopy(samples))
    assert ours["rollout_ids"] == theirs["rollout_ids"]


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo", "reinforce_plus_plus_baseline", "ppo"])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("divided", [True, False])
def test_advantages_of_whole_groups_without_fan_out_are_slimes(
    estimator: str, normalised: bool, divided: bool
) -> None:
    args = slime_args(
        advantage_estimator=estimator,
        rewards_normalization=normalised,
        grpo_std_normalization=divided,
        n_samples_per_prompt=3,
        global_batch_size=6,
    )
    samples = whole_groups(4)
    raw, advantages = reward_post_process(args, samples)
    bare = copy.copy(args)
    bare.custom_reward_post_process_path = None
    their_raw, theirs = rollout_manager(bare)._post_process_rewards(samples)
    assert raw == their_raw
    assert advantages == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_with_fan_out_slimes_own_baseline_is_over_the_whole_batch() -> None:
    """Why our reward hook is needed: a group of equal rewards gets an advantage from slime, 0 from us."""
    runs = [
        Conversation(0, [([1], [2]), ([3], [4])], 1.0, [1]),
        Conversation(0, [([1], [5])], 1.0),
        Conversation(1, [([1], [2])], 1.0),
        Conversation(1, [([1], [3])], 0.0),
    ]
    samples = flat(runs)
    args = slime_args(n_samples_per_prompt=2)
    bare = copy.copy(args)
    bare.custom_reward_post_process_path = None
    _, theirs = rollout_manager(bare)._post_process_rewards(samples)
    _, ours = reward_post_process(args, samples)
    assert any(theirs[:3]) and not any(ours[:3])


@SETTINGS
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=9),
    gbs=st.integers(1, 4),
    dp_size=st.integers(1, 2),
    order=st.randoms(use_true_random=False),
)
def test_our_idea_of_optimizer_steps_is_slimes_schedule(
    sizes: list[int], gbs: int, dp_size: int, order: Any
) -> None:
    rollout_ids = [rollout_id for rollout_id, size in enumerate(sizes) for _ in range(size)]
    order.shuffle(rollout_ids)
    ours = optimizer_steps(rollout_ids, gbs)
    config = {"dp_size": dp_size, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    if not ours.positions or any(len(step) < dp_size for step in ours.positions):
        with pytest.raises(AssertionError):
            build_dp_schedule(
                slime_args(), config, [10] * len(rollout_ids), global_batch_size=gbs, rollout_indices=rollout_ids
            )
        return
    partitions, indices, counts, _ = build_dp_schedule(
        slime_args(), config, [10] * len(rollout_ids), global_batch_size=gbs, rollout_indices=rollout_ids
    )
    steps: list[list[int]] = [[] for _ in counts]
    for rank in range(dp_size):
        placed = micro_batches({"num_microbatches": counts, "micro_batch_indices": indices[rank]})
        for step, batches in enumerate(placed):
            steps[step] += [partitions[rank][place] for batch in batches for place in batch]
    assert [sorted(step) for step in steps] == [sorted(step) for step in ours.positions]


@SETTINGS
@given(whole=st.lists(conversations(), min_size=2, max_size=5), data=st.data())
def test_any_batch_of_ours_becomes_slimes_tensors(whole: list[Conversation], data: st.DataObject) -> None:
    manager = rollout_manager(slime_args(global_batch_size=2), dp_size=2)
    converted = manager._convert_samples_to_train_data(flat([data.draw(cut(run)) for run in whole]))
    with pytest.MonkeyPatch.context() as patched:
        ranks = split_by_rank(manager, converted, patched)
    assert len({len(rank["micro_batch_indices"]) for rank in ranks}) == 1
    for rank in ranks:
        assert all(torch.isfinite(values).all() for values in rank["rollout_log_probs"])


# Routing replay ----------------------------------------------------------------------------------------


def replayed(layers: int = 2, topk: int = 2) -> tuple[Any, list[Any]]:
    args = slime_args(use_rollout_routing_replay=True, num_layers=layers, moe_router_topk=topk, global_batch_size=2)
    plain = flat(RUNS[1:2])
    for sample in plain:
        count = (len(sample.tokens) - 1) * layers * topk
        sample.rollout_routed_experts = np.arange(1, count + 1, dtype=np.int32).reshape(-1, layers, topk)
    dead = mark_aborted_no_grad(Sample(index=9, group_index=0, metadata={"instance_id": "task-0"}), args=args)
    return args, [*plain, dead]


def test_expert_rows_of_live_and_dead_samples_pass_slimes_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    args, samples = replayed()
    manager = rollout_manager(args)
    data = manager._convert_samples_to_train_data(samples)
    slime_module("slime.observability.rollout_data_utils").validate_rollout_routed_experts_for_replay(
        data["rollout_routed_experts"], args
    )
    (rank,) = split_by_rank(manager, data, monkeypatch)
    assert [tuple(rows.shape) for rows in rank["rollout_routed_experts"]] == [(4, 2, 2), (1, 2, 2)]
    assert {rows.dtype for rows in rank["rollout_routed_experts"]} == {torch.int32}


def test_slime_refuses_the_dead_sample_of_zeros_that_ours_is_not() -> None:
    args, samples = replayed()
    validate = slime_module("slime.observability.rollout_data_utils").validate_rollout_routed_experts_for_replay
    with pytest.raises(ValueError, match="all zero"):
        validate([np.zeros_like(samples[-1].rollout_routed_experts)], args)

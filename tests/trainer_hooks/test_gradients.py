"""What the hooks promise about the gradient, shown on one: slime's clipped loss on a policy of numpy arrays."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.tito.segments import NoSteps, plan_segments, untrainable_steps
from tests.tito.columns import segment_arrays
from tests.tito.forests import trajectories
from tests.trainer_hooks.batches import Run, make_batch
from tests.trainer_hooks.builders import make_segment, make_template
from tests.trainer_hooks.conversations import (
    Conversation,
    conversations,
    cut,
    mean_over_prompts,
    samples_of,
    train_data,
)
from tests.trainer_hooks.slime_stand_in import Sample, make_args, token_weights
from tests.trainer_hooks.tiny_policy import (
    OLD_WEIGHTS,
    WEIGHTS,
    assert_same_steps,
    steps_of,
    token_logprobs,
)
from trainer_hooks.slime.batch.trajectories import group_trajectories
from trainer_hooks.slime.convert_samples import convert_samples_to_train_data
from trainer_hooks.slime.reward_post_process import reward_post_process
from trainer_hooks.slime.samples import expand_segments_to_samples, mark_aborted_no_grad

SETTINGS = settings(max_examples=40, deadline=None)
TOKEN_ESTIMATORS = ["grpo", "reinforce_plus_plus_baseline", "cispo", "ppo", "reinforce_plus_plus"]
BEGINNING = {"tokens": 0, "full_loss_mask": 0, "full_logprobs": 0.0, "full_versions": "-1"}
"""A token before everything else: a forest may begin with a sampled one, and a session never does."""

runs = st.lists(conversations(), min_size=1, max_size=6)


def test_the_tiny_policys_gradient_is_the_slope_of_its_loss() -> None:
    batch = samples_of([Conversation(0, [([1, 2], [3, 4, 5])], 1.0), Conversation(0, [([7], [8, 9])], -1.0)])
    data = train_data(batch, 2)
    (step,) = steps_of(data, 2)
    assert np.abs(step.gradient).max() > 0.01
    direction = np.random.default_rng(1).normal(size=WEIGHTS.shape)
    (up,), (down,) = (steps_of(data, 2, WEIGHTS + sign * 1e-6 * direction) for sign in (1, -1))
    assert (up.loss - down.loss) / 2e-6 == pytest.approx((step.gradient * direction).sum(), rel=1e-5)


@SETTINGS
@given(whole=runs, estimator=st.sampled_from(TOKEN_ESTIMATORS), data=st.data())
def test_splitting_a_run_into_segments_changes_neither_loss_nor_gradient(
    whole: list[Conversation], estimator: str, data: st.DataObject
) -> None:
    split = [data.draw(cut(run)) for run in whole]
    one, several = (
        train_data(samples_of(batch), len(whole), advantage_estimator=estimator) for batch in (whole, split)
    )
    assert len(several["tokens"]) == len(whole) + sum(len(run.cuts) for run in split)
    assert_same_steps(steps_of(one, len(whole)), steps_of(several, len(whole)))


@SETTINGS
@given(batch=runs, data=st.data())
def test_each_prompt_moves_the_weights_by_the_mean_over_its_own_tokens(
    batch: list[Conversation], data: st.DataObject
) -> None:
    """Advantage 1 on all tokens: the gradient is the mean over prompts of the mean over tokens."""
    for run in batch:
        run.reward = 1.0
    split = [data.draw(cut(run)) for run in batch]
    (step,) = steps_of(train_data(samples_of(split), len(batch), rewards_normalization=False), len(batch))
    expected = mean_over_prompts(batch)
    np.testing.assert_allclose(step.gradient, expected, rtol=1e-9, atol=1e-12)


@SETTINGS
@given(batch=runs, order=st.randoms(use_true_random=False), data=st.data())
def test_the_order_of_runs_and_of_their_segments_does_not_matter(
    batch: list[Conversation], order: random.Random, data: st.DataObject
) -> None:
    samples = samples_of([data.draw(cut(run)) for run in batch])
    shuffled = [[sample] for run in samples for sample in run]
    order.shuffle(shuffled)
    gbs = len(batch)
    assert_same_steps(steps_of(train_data(samples, gbs), gbs), steps_of(train_data(shuffled, gbs), gbs))


@SETTINGS
@given(
    batch=runs,
    dead=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    unrewarded=st.booleans(),
    at=st.integers(0, 6),
)
def test_dead_samples_change_no_gradient(
    batch: list[Conversation], dead: list[int], unrewarded: bool, at: int
) -> None:
    live = samples_of(batch)
    extra = [
        [mark_aborted_no_grad(make_template(90 + n, prompt, metadata={"instance_id": f"task-{prompt}"}))]
        for n, prompt in enumerate(dead)
    ]
    if unrewarded:
        lost = Conversation(batch[0].prompt, [([1], [2, 3]), ([4], [5])], None, [1])
        (samples,) = samples_of([lost])
        for sample in samples:
            sample.rollout_id = 99
        extra.append(samples)
    mixed = live[:at] + extra + live[at:]
    gbs = len(mixed)
    assert_same_steps(steps_of(train_data(live, len(live)), len(live)), steps_of(train_data(mixed, gbs), gbs))


@SETTINGS
@given(
    rewards=st.lists(
        st.lists(
            st.none() | st.floats(-1e3, 1e3) | st.sampled_from([0.1, 0.1 + 0.2, math.nan, -math.inf]),
            min_size=1,
            max_size=6,
        ),
        min_size=1,
        max_size=4,
    ),
    estimator=st.sampled_from(["grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"]),
    divide=st.booleans(),
    splits=st.randoms(use_true_random=False),
)
def test_advantages_of_every_group_sum_to_zero(
    rewards: list[list[float | None]], estimator: str, divide: bool, splits: random.Random
) -> None:
    batch = [
        Run(group, [2] * splits.randint(1, 3), reward) for group, found in enumerate(rewards) for reward in found
    ]
    samples = [sample for run in make_batch(batch) for sample in run]
    args = make_args(advantage_estimator=estimator, grpo_std_normalization=divide)
    _, advantages = reward_post_process(args, samples)
    sums: dict[int, list[float]] = {}
    for trajectory in group_trajectories(samples):
        assert len({advantages[position] for position in trajectory.members}) == 1
        sums.setdefault(samples[trajectory.anchor].group_index, []).append(advantages[trajectory.anchor])
    for group, found in sums.items():
        live = [reward for reward in rewards[group] if reward is not None and math.isfinite(reward)]
        scale = max(map(abs, live), default=0.0)
        assert sum(found) == pytest.approx(0.0, abs=1e-9 * max(1.0, scale) * len(found) * 1e3)
        assert any(found) == (len(set(live)) > 1), "equal rewards say nothing, different ones say something"


@SETTINGS
@given(forest=trajectories(max_steps=10), others=st.integers(8, 20))
def test_no_token_of_a_branch_or_a_sub_agent_counts_twice(forest: Any, others: int) -> None:
    """A session of any shape: branches, retries, sub-agents, compactions, aborts. Each id is there once."""
    try:
        plans = plan_segments(forest)
    except NoSteps:
        return
    segments = [
        make_segment("01", index=number, session_id="s0", segment_count=len(plans), reward=1.0)
        | {name: [BEGINNING[name], *values] for name, values in segment_arrays(plan).items()}
        for number, plan in enumerate(plans)
    ]
    samples = expand_segments_to_samples(make_template(0, 0), segments)
    other = make_segment([0] + [1] * others, session_id="s1", first_token=5000, reward=0.0)
    samples += expand_segments_to_samples(make_template(1, 0), [other])
    args = make_args(global_batch_size=2)
    data = convert_samples_to_train_data(args, samples)
    (weights,) = token_weights(data, 2)  # asserts that no id trains twice
    reasons = untrainable_steps(forest)
    expected = {
        token for node in forest if node.record.step_id not in reasons for token in node.record.output_ids.tolist()
    }
    trained = {token for token in weights if token < 5000}
    assert trained == expected
    total = len(expected) + others
    assert all(weight == pytest.approx(1 / total) for weight in weights.values())


def test_what_runs_of_a_group_share_cancels_out() -> None:
    """The seeds' reason for equal prompts: under centred advantages a shared beginning gets no gradient, however
    long and however split the runs are after it. With a denominator per trajectory it does get one."""
    shared: list[tuple[list[int], list[int]]] = [([1, 2], [3, 4, 5]), ([6], [7, 8])]
    batch = [
        Conversation(0, [*shared, ([9], [10] * 9)], 1.0, [2]),
        Conversation(0, [*shared, ([9], [11])], 0.0),
        Conversation(0, [*shared, ([12], [13, 14]), ([9], [15] * 4)], 0.5, [1, 3]),
    ]

    def of_the_shared(estimator: str) -> Any:
        data = train_data(samples_of(batch), 3, advantage_estimator=estimator)
        for i, sample_tokens in enumerate(data["tokens"]):
            first = len(sample_tokens) - data["response_lengths"][i]
            length = sum(len(context) + len(sampled) for context, sampled in shared)
            data["loss_masks"][i] = [m * int(first + t < length) for t, m in enumerate(data["loss_masks"][i])]
        (step,) = steps_of(data, 3, OLD_WEIGHTS)  # ratios are 1: no clipping
        return np.abs(step.gradient).max()

    assert of_the_shared("grpo") < 1e-12
    assert of_the_shared("gspo") > 1e-3


def test_each_of_several_steps_has_a_full_gradient() -> None:
    """Two optimizer steps with the same runs: each moves the weights as the one of a batch of half the size."""
    half = [Conversation(0, [([1, 2], [3, 4, 5, 6])], 1.0), Conversation(0, [([1, 2], [7, 8, 9])], 0.0)]
    (alone,) = steps_of(train_data(samples_of(half), 2), 2)
    both = samples_of([*half, *half])
    for sample in itertools.chain.from_iterable(both[2:]):
        sample.group_index = 1
        sample.metadata["instance_id"] = "task-1"
    steps = steps_of(train_data(both, 2), 2)
    assert_same_steps(steps, [alone, alone])
    shrunk = steps_of(train_data(both, 2, tito_prompt_equal_scope="batch"), 2)
    np.testing.assert_allclose(shrunk[0].gradient, alone.gradient / 2, rtol=1e-9)


def test_logprobs_of_a_sample_are_those_of_its_tokens() -> None:
    """The ratio of policy to sampler is exactly 1 on every trained token while the weights are the sampler's."""
    (run,) = samples_of([Conversation(0, [([1, 2], [3, 4]), ([5], [6])], 1.0, [1])])
    for sample in run:
        assert isinstance(sample, Sample)
        logs, _ = token_logprobs(sample.tokens, OLD_WEIGHTS)
        assert sample.rollout_log_probs == pytest.approx(logs[-sample.response_length :].tolist())

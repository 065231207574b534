"""Properties of the way from segments to train data, for any batch."""

from __future__ import annotations

import copy
import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer_hooks.batches import Run, flat_batch, make_batch
from tests.trainer_hooks.builders import dirty_template, make_segment
from tests.trainer_hooks.slime_stand_in import (
    Sample,
    check_rollout_ids_annotated,
    check_train_data,
    make_args,
    token_advantages,
    token_weights,
)
from trainer_hooks.slime.batch.denominators import optimizer_steps
from trainer_hooks.slime.batch.trajectories import fill_rollout_ids
from trainer_hooks.slime.convert_samples import convert_samples_to_train_data
from trainer_hooks.slime.samples import expand_segments_to_samples

SETTINGS = settings(max_examples=100, deadline=None)

rewards = st.sampled_from([0.0, 1.0, 0.25, -1.5])
# At least 16 tokens in batches of at most 12 runs: no denominator below 1, where slime's clamp would bite.
live_runs = st.builds(
    Run, prompt=st.integers(0, 3), segments=st.lists(st.integers(16, 30), min_size=1, max_size=4), reward=rewards
)
estimators = st.sampled_from(["grpo", "reinforce_plus_plus_baseline"])


def convert(samples: list[Sample], gbs: int, estimator: str = "grpo") -> dict[str, list[Any]]:
    data = convert_samples_to_train_data(make_args(global_batch_size=gbs, advantage_estimator=estimator), samples)
    check_train_data(data)
    return data


def assert_same_training(one: dict, other: dict, gbs_one: int, gbs_other: int) -> None:
    (weights_one,), (weights_other,) = token_weights(one, gbs_one), token_weights(other, gbs_other)
    assert weights_one == pytest.approx(weights_other)
    assert token_advantages(one) == token_advantages(other)


@SETTINGS
@given(runs=st.lists(live_runs, min_size=1, max_size=6), estimator=estimators, data=st.data())
def test_splitting_a_trajectory_changes_no_tokens_weight_and_no_advantage(
    runs: list[Run], estimator: str, data: st.DataObject
) -> None:
    whole = [replace(run, segments=[sum(run.segments)]) for run in runs]
    split = []
    for run in whole:
        cuts = data.draw(st.lists(st.integers(1, run.segments[0] - 1), unique=True, max_size=4))
        edges = [0, *sorted(cuts), run.segments[0]]
        split.append(replace(run, segments=[b - a for a, b in itertools.pairwise(edges)]))
    gbs = len(runs)
    assert_same_training(
        convert(flat_batch(whole), gbs, estimator), convert(flat_batch(split), gbs, estimator), gbs, gbs
    )


@SETTINGS
@given(
    runs=st.lists(
        live_runs | st.builds(Run, prompt=st.integers(0, 3), segments=st.just([]), dead=st.just(True)),
        min_size=2,
        max_size=12,
    ),
    gbs=st.integers(1, 4),
    estimator=estimators,
)
def test_weights_of_every_step_sum_to_one_and_each_prompts_to_its_share(
    runs: list[Run], gbs: int, estimator: str
) -> None:
    gbs = min(gbs, len(runs))
    samples = flat_batch(runs)
    data = convert(samples, gbs, estimator)
    prompt_of = {t: s.metadata["instance_id"] for s in samples for t in s.tokens if t >= 1000}
    steps = token_weights(data, gbs)
    assert len(steps) == len(runs) // gbs
    for weights in steps:
        shares: dict[str, float] = {}
        for token, weight in weights.items():
            shares[prompt_of[token]] = shares.get(prompt_of[token], 0.0) + weight
        if shares:
            assert sum(shares.values()) == pytest.approx(1.0)
        for share in shares.values():
            assert share == pytest.approx(1 / len(shares))


@SETTINGS
@given(runs=st.lists(live_runs, min_size=1, max_size=6), seed=st.randoms(use_true_random=False))
def test_the_order_of_samples_within_a_step_does_not_matter(runs: list[Run], seed: random.Random) -> None:
    samples = flat_batch(runs)
    shuffled = list(samples)
    seed.shuffle(shuffled)
    assert_same_training(convert(samples, len(runs)), convert(shuffled, len(runs)), len(runs), len(runs))


@SETTINGS
@given(
    runs=st.lists(live_runs, min_size=1, max_size=6),
    dead=st.lists(st.integers(0, 5), max_size=4),
    unrewarded=st.integers(0, 2),
    at=st.integers(0, 6),
)
def test_dead_samples_change_nothing_for_the_others(
    runs: list[Run], dead: list[int], unrewarded: int, at: int
) -> None:
    extra = [Run(prompt, [], dead=True) for prompt in dead] + [Run(0, [3, 4], None)] * unrewarded
    # Built together, so that the live runs' tokens keep their ids; then the same without the dead ones.
    batch = make_batch(runs + extra)
    live, others = batch[: len(runs)], batch[len(runs) :]
    mixed = live[:at] + others + live[at:]
    gbs = len(mixed)
    assert_same_training(
        convert([s for run in copy.deepcopy(live) for s in run], len(live)),
        convert([s for run in mixed for s in run], gbs),
        len(live),
        gbs,
    )


@SETTINGS
@given(runs=st.lists(live_runs, min_size=1, max_size=6))
def test_raw_rewards_sum_to_the_terminal_rewards(runs: list[Run]) -> None:
    data = convert(flat_batch(runs), len(runs))
    assert sum(data["raw_reward"]) == pytest.approx(sum(run.reward or 0.0 for run in runs))


@st.composite
def sessions(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Segments with any mask (also none trained), any versions and any log-probs."""
    segments = []
    for index in range(draw(st.integers(1, 4))):
        length = draw(st.integers(2, 12))
        mask = [0, *draw(st.lists(st.integers(0, 1), min_size=length - 1, max_size=length - 1))]
        sampled = [m or draw(st.booleans()) for m in mask]
        segments.append(
            make_segment(
                mask,
                index=index,
                first_token=100 * index,
                full_logprobs=[-draw(st.floats(0, 50)) if s else 0.0 for s in sampled],
                full_versions=[draw(st.sampled_from(["1", "2", "10"])) if s else "-1" for s in sampled],
                extra_info={"mask_nonlast_version_tokens": draw(st.booleans())},
                finish_reason=draw(st.sampled_from(["stop", "length", "segment_boundary"])),
                reward=draw(st.none() | st.floats(-1, 1)),
            )
        )
    return draw(st.permutations(segments))


@SETTINGS
@given(segments=sessions(), cap=st.none() | st.integers(2, 12))
def test_slices_rejoin_to_the_segments_arrays_and_nothing_is_modified(
    segments: list[dict[str, Any]], cap: int | None
) -> None:
    template = dirty_template()
    template_before, segments_before = copy.deepcopy(template), copy.deepcopy(segments)
    samples = expand_segments_to_samples(template, segments, args=make_args(max_tokens_per_gpu=cap))
    assert segments == segments_before
    by_index = {segment["segment_index"]: segment for segment in segments}
    trained_by_index = {i: s["full_loss_mask"][:cap] for i, s in by_index.items()}
    if not any(any(mask) for mask in trained_by_index.values()):
        (dead,) = samples
        assert dead.status is Sample.Status.ABORTED
        template_before.session_id = None
        template_before.metadata |= {"last_failed_session_id": "s1", "retry_count": 3}
        assert template == template_before
        return
    assert template == template_before
    anchor = max(by_index)
    assert [s.metadata["segment_index"] for s in samples] == sorted(
        i for i, mask in trained_by_index.items() if any(mask) or i == anchor
    )
    check_rollout_ids_annotated([[samples]])
    for sample in samples:
        segment = by_index[sample.metadata["segment_index"]]
        mask, logprobs = segment["full_loss_mask"][:cap], segment["full_logprobs"][:cap]
        i0 = len(sample.tokens) - sample.response_length
        assert i0 >= 1
        assert sample.tokens == segment["tokens"][:cap]
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
        assert sample.metadata["full_versions"] == segment["full_versions"][:cap]
        if not any(mask):
            assert (sample.loss_mask, sample.rollout_log_probs) == ([0], [0.0])
            continue
        assert mask[:i0] == [0] * i0 and mask[i0] == 1
        assert logprobs[:i0] + sample.rollout_log_probs == logprobs
        assert_mask_rejoins(sample, segment, mask, i0)


def assert_mask_rejoins(sample: Sample, segment: dict[str, Any], mask: list[int], i0: int) -> None:
    joined = [0] * i0 + sample.loss_mask
    if not segment["extra_info"]["mask_nonlast_version_tokens"]:
        assert joined == mask
        return
    versions = segment["full_versions"]
    last = versions[max(i for i, m in enumerate(mask) if m)]
    assert joined == [int(m and versions[i] == last) for i, m in enumerate(mask)]


@SETTINGS
@given(ids=st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=12), gbs=st.integers(1, 5))
def test_filled_ids_are_unused_and_steps_partition_the_samples(ids: list[int | None], gbs: int) -> None:
    filled = fill_rollout_ids([Sample(rollout_id=i) for i in ids])
    given_ids = {i for i in ids if i is not None}
    fresh = [new for new, old in zip(filled, ids, strict=True) if old is None]
    assert len(set(fresh)) == len(fresh) and not given_ids & set(fresh)
    assert all(new == old for new, old in zip(filled, ids, strict=True) if old is not None)
    steps = optimizer_steps(filled, gbs)
    assert sorted([i for step in steps.positions for i in step] + steps.dropped) == list(range(len(ids)))
    assert all(len({filled[i] for i in step}) == gbs for step in steps.positions)
    assert len({filled[i] for i in steps.dropped}) < gbs

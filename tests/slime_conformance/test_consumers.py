"""slime's default consumers of samples take ours: reward model, filter, metrics; and what fails without us."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.slime_conformance.checkout import slime_module
from tests.slime_conformance.trainer import slime_args
from tests.trainer_hooks.conversations import Conversation, samples_of
from trainer_hooks.slime.check_args import find_problems
from trainer_hooks.slime.filters import check_reward_nonzero_std
from trainer_hooks.slime.samples import mark_aborted_no_grad

Sample = slime_module("slime.utils.types").Sample
metrics_module = slime_module("slime.observability.rollout_metrics")
filter_types = slime_module("slime.rollout.filter_hub.base_types")
slime_filters = slime_module("slime.rollout.filter_hub.dynamic_sampling_filters")
sglang_rollout = slime_module("slime.rollout.sglang_rollout")

SPLIT = [([1, 2], [3, 4]), ([5], [6, 7])]


def fan_out(reward: float | None, index: int = 0) -> list[Any]:
    """One run of two segments."""
    (run,) = samples_of([Conversation(0, SPLIT, reward, [1])], sample_type=Sample)
    for sample in run:
        sample.index = sample.rollout_id = index
        sample.metadata["parent_traj_id"] = f"s{index}"
    return run


# Logging -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, None])
def test_slimes_record_holds_its_metrics_and_ours(extra: dict[str, float] | None, monkeypatch: Any) -> None:
    records: list[tuple[dict[str, Any], str]] = []
    logging_utils = slime_module("slime.observability.logging_utils")
    monkeypatch.setattr(logging_utils, "log", lambda args, metrics, step_key: records.append((metrics, step_key)))
    args = slime_args(custom_rollout_log_function_path="trainer_hooks.slime.log_helpers.log_rollout_data")
    dead = mark_aborted_no_grad(Sample(index=1, group_index=0, metadata={"instance_id": "task-0"}))
    metrics_module.log_rollout_data(7, args, [*fan_out(1.0), dead], extra, 2.0)
    assert len(records) == (2 if extra is None else 1)
    assert all(step_key == "rollout/step" and metrics["rollout/step"] == 7 for metrics, step_key in records)
    merged = {name: value for metrics, _ in records for name, value in metrics.items()}
    assert merged["rollout/num_trajectories"] == 2 and merged["rollout/reward_mean"] == 1.0
    assert "rollout/response_len/mean" in merged and "perf/rollout_time" in merged


def test_slimes_reward_categories_fail_on_fan_out_and_are_refused() -> None:
    """slime looks for the category in the rewards of all samples, also where the anchor alone has one."""
    args = slime_args(reward_key="score", log_reward_category="kind")
    samples = fan_out(None)
    samples[0].reward, samples[1].reward = {"score": 0.0}, {"score": 1.0, "kind": "wrong"}
    with pytest.raises(KeyError, match="kind"):
        metrics_module.compute_metrics_from_samples(args, samples)
    assert any("--log-reward-category" in problem for problem in find_problems(args))


# Filter ------------------------------------------------------------------------------------------------


def test_our_filter_answers_in_slimes_type() -> None:
    args = slime_args()
    equal, different = [fan_out(1.0, 0), fan_out(1.0, 1)], [fan_out(1.0, 0), fan_out(0.0, 1)]
    dropped = filter_types.call_dynamic_filter(check_reward_nonzero_std, args, equal)
    assert (dropped.keep, dropped.reason) == (False, "zero_std_1.0")
    assert filter_types.should_drop_dynamic_filter_output(dropped, remaining_batch_size=2, target_data_size=2)
    assert filter_types.call_dynamic_filter(check_reward_nonzero_std, args, different).keep is True


@pytest.mark.parametrize("rewards", [(1.0, 0.0, 0.5), (1.0, 1.0, 1.0), (0.1 + 0.2, 0.3, 0.3)])
def test_without_fan_out_our_filter_decides_as_slimes(rewards: tuple[float, ...]) -> None:
    group = [Sample(index=i, group_index=0, reward=reward) for i, reward in enumerate(rewards)]
    ours = check_reward_nonzero_std(slime_args(), group)
    theirs = slime_filters.check_reward_nonzero_std(slime_args(), group)
    assert (ours.keep, ours.reason) == (bool(theirs.keep), theirs.reason)


def test_slimes_own_filter_fails_on_fan_out() -> None:
    """Why ours is needed. Where this passes no more, slime may have learned to do it."""
    with pytest.raises(AttributeError, match="get_reward_value"):
        slime_filters.check_reward_nonzero_std(slime_args(), [fan_out(1.0, 0), fan_out(0.0, 1)])


# Reward model ------------------------------------------------------------------------------------------


async def half(args: Any, samples: list[Any], **kwargs: Any) -> list[float]:
    return [0.5] * len(samples)


async def live_run(args: Any, sample: Any, sampling_params: dict[str, Any]) -> list[Any]:
    return fan_out(None, sample.index)


async def dead_run(args: Any, sample: Any, sampling_params: dict[str, Any]) -> list[Any]:
    return [mark_aborted_no_grad(sample)]


def generated(path: str, monkeypatch: Any) -> list[Any]:
    """What slime's `generate_and_rm` makes of a generate function of ours."""

    class State:
        aborted = False

        def __init__(self, args: Any) -> None:
            self.semaphore = asyncio.Semaphore(1)

        @contextmanager
        def dp_rank_context(self) -> Any:
            yield 0

    monkeypatch.setattr(sglang_rollout, "GenerateState", State)
    args = SimpleNamespace(
        partial_rollout=False,
        group_rm=False,
        custom_generate_function_path=f"{__name__}.{path}",
        custom_rm_path=f"{__name__}.half",
        rollout_sample_hook_path=[],
        reward_key=None,
    )
    sample = Sample(index=3, group_index=0, prompt="q", metadata={"instance_id": "task-0"})
    found: list[Any] = asyncio.run(sglang_rollout.generate_and_rm(args, sample, {"temperature": 1.0}))
    return found


def test_slimes_reward_model_fills_the_anchor_and_only_it(monkeypatch: Any) -> None:
    samples = generated("live_run", monkeypatch)
    assert [sample.reward for sample in samples] == [0.0, 0.5]
    assert [sample.metadata["is_anchor"] for sample in samples] == [False, True]


def test_slimes_reward_model_is_not_asked_about_a_dead_run(monkeypatch: Any) -> None:
    (dead,) = generated("dead_run", monkeypatch)
    assert dead.reward == 0.0 and dead.status is Sample.Status.ABORTED

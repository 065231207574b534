"""Synchronous rollouts: one batch per call, dead runs tried again in place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.trainer_hooks.rollouts.generators import dead, trajectory
from tests.trainer_hooks.rollouts.slime_process import BufferedSource, SlimeProcess, rollout_args, shape
from tests.trainer_hooks.slime_stand_in import Sample, check_rollout_ids_annotated, flatten
from trainer_hooks.slime.errors import RewardError, SettingError
from trainer_hooks.slime.sync_rollout import generate_rollout_sync

RETRY_KEYS = {"retry_count", "last_failed_session_id"}


def test_a_batch_has_the_shape_group_run_segment(slime: SlimeProcess) -> None:
    args = rollout_args(lambda sample: trajectory(sample, segments=1 + sample.index % 3))
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    assert shape(output.samples) == [[1, 2], [3, 1]]
    check_rollout_ids_annotated(output.samples)
    assert [sample.rollout_id for sample in flatten(output.samples)] == [0, 1, 1, 2, 2, 2, 3]


def test_a_generate_function_that_returns_a_sample_makes_lists_too(slime: SlimeProcess) -> None:
    args = rollout_args(lambda sample: trajectory(sample)[0])
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    assert shape(output.samples) == [[1, 1], [1, 1]]
    assert all(sample.rollout_id == sample.index for sample in flatten(output.samples))


def test_a_dead_run_is_tried_again_with_a_fresh_session_while_the_others_stay(slime: SlimeProcess) -> None:
    sessions: dict[int, list[str]] = {}
    metadata: list[dict[str, Any]] = []

    def script(sample: Sample) -> list[Sample]:
        sessions.setdefault(sample.index, []).append(sample.session_id)
        if sample.index == 1:
            metadata.append(dict(sample.metadata))
            if len(sessions[1]) < 3:
                return dead(sample)
        return trajectory(sample)

    args = rollout_args(script)
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    assert [len(sessions[index]) for index in range(4)] == [1, 3, 1, 1]
    assert len(set(sessions[1])) == 3
    assert [m.get("retry_count", 0) for m in metadata] == [0, 1, 2]
    assert metadata[1]["last_failed_session_id"] == sessions[1][0]
    live = flatten(output.samples)
    assert all(sample.status is Sample.Status.COMPLETED for sample in live)
    assert not any(RETRY_KEYS & set(sample.metadata) for sample in live)
    assert output.metrics["rollout/runs_retried"] == 2
    assert output.metrics["rollout/runs_dead"] == 0


def test_what_is_dead_after_all_tries_stays_as_a_placeholder_in_its_place(slime: SlimeProcess) -> None:
    args = rollout_args(lambda sample: dead(sample) if sample.index in (1, 2, 3) else trajectory(sample))
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    samples = flatten(output.samples)
    assert shape(output.samples) == [[1, 1], [1, 1]]
    assert [sample.remove_sample for sample in samples] == [False, True, True, True]
    assert [sample.rollout_id for sample in samples] == [0, 1, 2, 3]
    assert output.metrics["rollout/runs_dead"] == 3
    assert output.metrics["rollout/groups_exhausted"] == 1
    assert output.metrics["rollout/groups_delivered"] == 2


def test_an_exception_in_generate_kills_that_run_alone(slime: SlimeProcess) -> None:
    def script(sample: Sample) -> list[Sample]:
        if sample.index == 0:
            raise ZeroDivisionError("by zero")
        return trajectory(sample)

    args = rollout_args(script)
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    first = output.samples[0][0][0]
    assert first.remove_sample
    assert first.metadata["abort_reason"] == "ZeroDivisionError: by zero"
    assert not output.samples[0][1][0].remove_sample


def test_a_run_that_cancels_itself_is_dead_and_nothing_else_is(slime: SlimeProcess) -> None:
    async def script(sample: Sample) -> list[Sample]:
        if sample.index == 0:
            raise asyncio.CancelledError
        return trajectory(sample)

    args = rollout_args(script)
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    assert [sample.remove_sample for sample in flatten(output.samples)] == [True, False, False, False]


@pytest.mark.parametrize("error", [SettingError("TITO_X is wrong"), RewardError("no key")])
def test_a_wrong_setting_is_raised_and_every_prompt_is_given_back(slime: SlimeProcess, error: Exception) -> None:
    async def script(sample: Sample) -> list[Sample]:
        if sample.index == 2:
            raise error
        await asyncio.sleep(60)
        return trajectory(sample)

    args = rollout_args(script)
    source = BufferedSource(args)
    with pytest.raises(type(error), match=str(error)):
        generate_rollout_sync(args, 0, source)
    assert [group[0].group_index for group in source.buffer] == [0, 1]


def test_what_a_failed_try_did_to_its_sample_is_not_seen_by_the_next(slime: SlimeProcess) -> None:
    seen: list[tuple[list[int], bool]] = []

    def script(sample: Sample) -> list[Sample]:
        seen.append((list(sample.tokens), "mine" in sample.metadata))
        sample.tokens.append(7)
        sample.metadata["mine"] = True
        raise ValueError("after it changed the sample")

    args = rollout_args(script, tito_rollout_retries=1)
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    assert seen == [([], False)] * 8
    assert all(sample.tokens == [0, 0] for sample in flatten(output.samples))


def test_rewards_come_from_slimes_reward_model_where_none_is_set(slime: SlimeProcess) -> None:
    def script(sample: Sample) -> list[Sample]:
        return trajectory(sample, segments=2, reward=None if sample.index else 0.25)

    args = rollout_args(script, reward_model=lambda sample: sample.index / 2)
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    assert [run[-1].reward for group in output.samples for run in group] == [0.25, 0.5, 1.0, 1.5]
    assert [run[0].reward for group in output.samples for run in group] == [0.0] * 4


def test_a_reward_model_that_fails_kills_the_run(slime: SlimeProcess) -> None:
    def model(sample: Sample) -> float:
        raise OSError("no judge")

    args = rollout_args(lambda sample: trajectory(sample, reward=None), reward_model=model)
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    assert all(sample.remove_sample for sample in flatten(output.samples))


def test_sample_hooks_see_every_segment(slime: SlimeProcess) -> None:
    args = rollout_args(lambda sample: trajectory(sample, segments=2), rollout_sample_hook_path=["a.b"])
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    assert all(sample.metadata["hooked"] == ["a.b"] for sample in flatten(output.samples))


def test_segments_of_one_run_must_share_a_rollout_id(slime: SlimeProcess) -> None:
    def script(sample: Sample) -> list[Sample]:
        samples = trajectory(sample, segments=2)
        samples[1].rollout_id = 77
        return samples

    args = rollout_args(script, tito_rollout_retries=0)
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    assert "rollout ids" in output.samples[0][0][0].metadata["abort_reason"]


def test_a_missing_generate_function_is_refused_by_name(slime: SlimeProcess) -> None:
    args = rollout_args(trajectory, custom_generate_function_path=None)
    with pytest.raises(SettingError, match=r"trainer_hooks\.slime\.blackbox_dispatch\.generate"):
        generate_rollout_sync(args, 0, BufferedSource(args))


def test_a_batch_that_slime_would_cut_is_refused(slime: SlimeProcess) -> None:
    args = rollout_args(trajectory, rollout_batch_size=3)
    with pytest.raises(SettingError, match="rollout_batch_size 3 makes 6 agent runs"):
        generate_rollout_sync(args, 0, BufferedSource(args))


def test_prompts_that_run_out_are_an_error_and_not_an_endless_wait(slime: SlimeProcess) -> None:
    args = rollout_args(trajectory)
    source = BufferedSource(args, limit=1)
    with pytest.raises(RuntimeError, match="1 of 2 groups"):
        generate_rollout_sync(args, 0, source)
    assert len(source.buffer) == 1


def test_no_more_agents_run_at_a_time_than_was_allowed(slime: SlimeProcess) -> None:
    running, most = 0, 0

    async def script(sample: Sample) -> list[Sample]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return trajectory(sample)

    args = rollout_args(script, tito_rollout_concurrency=3, rollout_batch_size=10)
    generate_rollout_sync(args, 0, BufferedSource(args))
    assert most == 3


def test_slimes_concurrency_holds_where_none_is_set(slime: SlimeProcess) -> None:
    args = rollout_args(
        trajectory, tito_rollout_concurrency=None, sglang_server_concurrency=3, rollout_num_engines=2
    )
    assert shape(generate_rollout_sync(args, 0, BufferedSource(args)).samples) == [[1, 1], [1, 1]]
    args.sglang_server_concurrency = None
    with pytest.raises(SettingError, match="TITO_ROLLOUT_CONCURRENCY"):
        generate_rollout_sync(args, 1, BufferedSource(args))


def test_evaluation_is_slimes_own(slime: SlimeProcess) -> None:
    args = rollout_args(trajectory)
    output = generate_rollout_sync(args, 3, BufferedSource(args), evaluation=True)
    assert output.data == {"asked": {"rewards": [3.0]}}


def drop_even(args: Any, group: list[list[Sample]]) -> Any:
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput

    return DynamicFilterOutput(keep=group[0][0].group_index % 2 == 1, reason="even")


def drop_all_but_if_needed(args: Any, group: list[list[Sample]]) -> Any:
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput

    return DynamicFilterOutput(keep=False, reason="all", keep_when_insufficient=True)


def test_a_filtered_group_is_replaced_and_counted(slime: SlimeProcess) -> None:
    args = rollout_args(trajectory, dynamic_sampling_filter_path=f"{__name__}.drop_even")
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    assert [group[0][0].group_index for group in output.samples] == [1, 3]
    assert output.metrics["rollout/dynamic_filter/drop_even"] == 2
    assert output.metrics["rollout/groups_taken"] == 4


def test_a_filter_may_keep_what_is_needed_to_fill_the_batch(slime: SlimeProcess) -> None:
    args = rollout_args(trajectory, dynamic_sampling_filter_path=f"{__name__}.drop_all_but_if_needed")
    output = generate_rollout_sync(args, 0, BufferedSource(args))
    assert output.metrics["rollout/groups_taken"] == 2


def broken_filter(args: Any, group: list[list[Sample]]) -> Any:
    raise KeyError("filter")


def test_a_filter_that_fails_is_raised_and_loses_no_prompt(slime: SlimeProcess) -> None:
    args = rollout_args(trajectory, dynamic_sampling_filter_path=f"{__name__}.broken_filter")
    source = BufferedSource(args)
    with pytest.raises(KeyError, match="filter"):
        generate_rollout_sync(args, 0, source)
    assert [group[0].group_index for group in source.buffer] == [0, 1]


def remember(args: Any, data: Any, *more: Any) -> None:
    args.remembered.append(([group[0][0].group_index for group in data], len(more)))


def test_slimes_hooks_on_the_whole_batch_are_called(slime: SlimeProcess) -> None:
    args = rollout_args(
        trajectory,
        dynamic_sampling_filter_path=f"{__name__}.drop_even",
        rollout_sample_filter_path=f"{__name__}.remember",
        rollout_all_samples_process_path=f"{__name__}.remember",
        remembered=[],
    )
    generate_rollout_sync(args, 0, BufferedSource(args))
    assert args.remembered == [([1, 3], 0), ([1, 3, 0, 2], 1)]


def test_a_window_of_versions_means_nothing_where_all_are_of_one(slime: SlimeProcess) -> None:
    args = rollout_args(lambda sample: trajectory(sample, versions=("unknown",)), tito_keep_versions=1)
    assert shape(generate_rollout_sync(args, 0, BufferedSource(args)).samples) == [[1, 1], [1, 1]]

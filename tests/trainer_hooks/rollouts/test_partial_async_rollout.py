"""Partial rollouts: an exact number of whole groups per call, the rest in flight across weight updates."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.trainer_hooks.rollouts.control_server import TOKEN, ControlServer
from tests.trainer_hooks.rollouts.generators import Stage, dead, trajectory
from tests.trainer_hooks.rollouts.slime_process import BufferedSource, SlimeProcess, rollout_args, shape
from tests.trainer_hooks.slime_stand_in import Sample
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.partial_async_rollout import generate_rollout_partial_async
from trainer_hooks.slime.rollouts.policy import RolloutError


def numbers(output: Any) -> list[int]:
    """Group indices of a batch."""
    return [group[0][0].group_index for group in output.samples]


def test_what_is_not_needed_goes_on_and_counts_for_the_next_call(
    slime: SlimeProcess, stage: Stage, aside: ThreadPoolExecutor
) -> None:
    args = rollout_args(stage, over_sampling_batch_size=4)
    source = BufferedSource(args)
    call = aside.submit(generate_rollout_partial_async, args, 0, source)
    stage.wait_started(*range(8))
    stage.let_go(2, 3, 6, 7)  # groups 1 and 3
    first = call.result(30)
    assert numbers(first) == [1, 3]
    assert stage.running >= {0, 1, 4, 5}
    stage.let_go(0, 1, 4, 5)
    args.num_rollout = 2
    second = generate_rollout_partial_async(args, 1, source)
    assert numbers(second) == [0, 2]
    assert [stage.seen.count(index) for index in range(8)] == [1] * 8


def test_between_calls_no_group_is_started(slime: SlimeProcess, stage: Stage, aside: ThreadPoolExecutor) -> None:
    args = rollout_args(stage, over_sampling_batch_size=3)
    source = BufferedSource(args)
    call = aside.submit(generate_rollout_partial_async, args, 0, source)
    stage.wait_started(*range(6))
    stage.let_go(*range(4))
    output = call.result(30)
    # group 3 was started in the place of group 0, group 1 was the last one that was needed
    taken = source.sample_group_index
    stage.let_go(*range(4, 2 * taken))
    slime.loop.call(lambda: None)
    assert source.sample_group_index == taken
    assert output.metrics["rollout/groups_in_flight"] == taken - 2
    args.num_rollout = 2
    assert len(numbers(generate_rollout_partial_async(args, 1, source))) == 2


@pytest.mark.parametrize(
    ("setting", "groups"),
    [
        ({}, 2),
        ({"tito_partial_rollout_target_groups": 4}, 4),
        ({"tito_partial_rollout_target_samples": 12}, 6),
        ({"tito_partial_rollout_target_groups": 4, "tito_partial_rollout_target_samples": 8}, 4),
    ],
)
def test_a_call_returns_whole_optimizer_steps(slime: SlimeProcess, setting: dict[str, int], groups: int) -> None:
    args = rollout_args(trajectory, num_rollout=1, over_sampling_batch_size=9, **setting)
    assert shape(generate_rollout_partial_async(args, 0, BufferedSource(args)).samples) == [[1, 1]] * groups


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"tito_partial_rollout_target_groups": 3}, "TARGET_GROUPS is 3, which is 6 agent runs"),
        ({"tito_partial_rollout_target_samples": 6}, "TARGET_SAMPLES is 6"),
        ({"tito_partial_rollout_target_samples": -4}, "TARGET_SAMPLES"),
        (
            {"tito_partial_rollout_target_groups": 2, "tito_partial_rollout_target_samples": 8},
            "set one of them",
        ),
        ({"global_batch_size": 5}, "--global-batch-size 5"),
        ({"global_batch_size": None}, "global_batch_size is None"),
    ],
)
def test_a_target_that_is_no_multiple_is_refused(slime: SlimeProcess, setting: dict[str, Any], words: str) -> None:
    args = rollout_args(trajectory, **setting)
    with pytest.raises(SettingError, match=words):
        generate_rollout_partial_async(args, 0, BufferedSource(args))


def test_the_last_rollout_stops_what_runs_and_gives_it_back(
    slime: SlimeProcess, stage: Stage, aside: ThreadPoolExecutor
) -> None:
    args = rollout_args(stage, over_sampling_batch_size=5, num_rollout=1, tito_rollout_concurrency=10)
    source = BufferedSource(args)
    call = aside.submit(generate_rollout_partial_async, args, 0, source)
    stage.wait_started(*range(10))
    stage.let_go(0, 1, 4, 5)
    output = call.result(30)
    assert numbers(output) == [0, 2]
    given_back = [group[0].group_index for group in source.buffer]
    assert given_back == sorted(given_back)
    assert set(given_back) >= {1, 3, 4}
    assert set(stage.cancelled) >= {2, 3, 6, 7, 8, 9}
    assert not stage.running
    assert all(sample.status is Sample.Status.PENDING for group in source.buffer for sample in group)
    told = {name.removeprefix("rollout/groups_"): count for name, count in output.metrics.items()}
    assert told["taken"] == told["delivered"] + told["given_back"]


def test_the_last_rollout_is_known_where_epochs_were_asked_for(slime: SlimeProcess) -> None:
    args = rollout_args(trajectory, num_rollout=None, num_epoch=2, over_sampling_batch_size=4)
    source = BufferedSource(args, limit=6)
    for rollout_id in range(3):
        generate_rollout_partial_async(args, rollout_id, source)
    assert source.tito_rollout_worker is not None
    source.limit = 100
    args.num_epoch = 1
    generate_rollout_partial_async(args, 49, source)
    assert source.tito_rollout_worker is None


def test_a_group_in_which_nothing_lives_is_dropped_and_replaced(slime: SlimeProcess) -> None:
    args = rollout_args(
        lambda sample: dead(sample) if sample.group_index in (0, 2) else trajectory(sample), num_rollout=1
    )
    output = generate_rollout_partial_async(args, 0, BufferedSource(args))
    assert not {0, 2} & set(numbers(output))
    assert len(output.samples) == 2
    assert output.metrics["rollout/groups_exhausted"] >= 1


def test_a_group_of_which_something_lives_is_whole_with_placeholders(slime: SlimeProcess) -> None:
    args = rollout_args(lambda sample: dead(sample) if sample.index % 2 else trajectory(sample), num_rollout=1)
    output = generate_rollout_partial_async(args, 0, BufferedSource(args))
    assert [[run[0].remove_sample for run in group] for group in output.samples] == [[False, True]] * 2


def test_agents_that_all_die_end_the_training_with_the_reason_and_not_the_data_set(slime: SlimeProcess) -> None:
    args = rollout_args(dead, tito_rollout_max_dead_groups=5, tito_rollout_retries=1)
    source = BufferedSource(args)
    with pytest.raises(RolloutError, match=r"5 groups in a row .* scripted.* TITO_ROLLOUT_MAX_DEAD_GROUPS"):
        generate_rollout_partial_async(args, 0, source)
    assert source.sample_group_index < 12
    assert source.tito_rollout_worker is None


def test_a_failed_call_leaves_no_agent_behind_and_the_next_starts_anew(
    slime: SlimeProcess, stage: Stage, aside: ThreadPoolExecutor
) -> None:
    def script(sample: Sample) -> Any:
        if sample.index == 3:
            raise SettingError("TITO_X is wrong")
        return stage(sample)

    args = rollout_args(script, over_sampling_batch_size=3)
    source = BufferedSource(args)
    with pytest.raises(SettingError, match="TITO_X"):
        generate_rollout_partial_async(args, 0, source)
    assert not stage.running
    assert [group[0].group_index for group in source.buffer] == [0, 1, 2]
    args.script = trajectory
    args.num_rollout = 1
    assert numbers(generate_rollout_partial_async(args, 0, source)) == [0, 1]


class Versions:
    """Each group's runs say which versions sampled them."""

    def __init__(self, by_group: dict[int, tuple[str, ...]], otherwise: tuple[str, ...]) -> None:
        self.by_group, self.otherwise = by_group, otherwise

    def __call__(self, sample: Sample) -> list[Sample]:
        assert sample.group_index is not None
        return trajectory(sample, versions=self.by_group.get(sample.group_index, self.otherwise))


def test_groups_outside_the_newest_versions_are_dropped_whole_and_counted(slime: SlimeProcess) -> None:
    script = Versions({0: ("1",), 1: ("1", "2"), 2: ("2", "3"), 3: ("3",)}, ("3",))
    args = rollout_args(script, tito_keep_versions=2, over_sampling_batch_size=4, num_rollout=1)
    output = generate_rollout_partial_async(args, 0, BufferedSource(args))
    # all four end in one turn of the loop: then 1 is too old, 2 is the oldest that trains
    assert numbers(output)[0] >= 1
    assert output.metrics["rollout/groups_dropped_stale"] == 1
    assert output.metrics["rollout/observed_version_gap_max"] <= 1


def test_a_left_over_that_became_too_old_is_not_delivered(
    slime: SlimeProcess, stage: Stage, aside: ThreadPoolExecutor
) -> None:
    versions = Versions({0: ("1",), 1: ("1",), 2: ("1",)}, ("2",))
    args = rollout_args(versions, tito_keep_versions=1, over_sampling_batch_size=3)
    source = BufferedSource(args)
    assert numbers(generate_rollout_partial_async(args, 0, source)) == [0, 1]
    args.num_rollout = 2
    second = generate_rollout_partial_async(args, 1, source)
    assert 2 not in numbers(second)
    assert second.metrics["rollout/groups_dropped_stale"] == 1


def test_versions_that_nobody_recorded_end_the_call_and_not_the_data_set(slime: SlimeProcess) -> None:
    args = rollout_args(lambda sample: trajectory(sample, versions=("unknown",)), tito_keep_versions=1)
    source = BufferedSource(args)
    with pytest.raises(RolloutError, match="--record-token-versions"):
        generate_rollout_partial_async(args, 0, source)
    assert source.sample_group_index < 10


def test_fresh_groups_that_are_never_new_enough_end_the_call_and_not_the_data_set(slime: SlimeProcess) -> None:
    # one engine of two was not updated, say
    def script(sample: Sample) -> list[Sample]:
        return trajectory(sample, versions=("2",) if sample.index % 2 else ("1",))

    args = rollout_args(script, tito_keep_versions=1, tito_rollout_max_dead_groups=6)
    source = BufferedSource(args)
    with pytest.raises(RolloutError, match=r"6 groups of this call .*observed: [12], [12]"):
        generate_rollout_partial_async(args, 0, source)
    assert source.sample_group_index < 20


def test_an_interrupt_ends_every_agent_and_loses_no_prompt(
    slime: SlimeProcess, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = rollout_args(stage, over_sampling_batch_size=3)
    source = BufferedSource(args)
    result = Future.result

    def interrupted(self: Future[Any], timeout: float | None = None) -> Any:
        monkeypatch.setattr(Future, "result", result)
        stage.wait_started(*range(6))
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generate_rollout_partial_async(args, 0, source)
    assert sorted(stage.cancelled) == list(range(6))
    assert [group[0].group_index for group in source.buffer] == [0, 1, 2]


def test_the_sidecar_tells_that_weights_are_new_before_any_run_does(slime: SlimeProcess) -> None:
    with ControlServer() as server:
        server.version = "1"
        args = rollout_args(
            lambda sample: trajectory(sample, versions=("1",) if sample.group_index < 3 else ("2",)),
            tito_keep_versions=1,
            tito_control_url=server.url,
            tito_control_token=TOKEN,
            over_sampling_batch_size=3,
        )
        source = BufferedSource(args)
        assert numbers(generate_rollout_partial_async(args, 0, source)) == [0, 1]
        server.version = "2"
        args.num_rollout = 2
        second = generate_rollout_partial_async(args, 1, source)
        assert numbers(second) == [3, 4]
        assert second.metrics["rollout/groups_dropped_stale"] == 1
        assert second.metrics["rollout/observed_version_gap_max"] == 0


def test_a_sidecar_that_does_not_tell_its_version_stops_nothing(slime: SlimeProcess) -> None:
    with ControlServer() as server:
        server.failures["/v1/rollout/pause_state"] = [503]
        args = rollout_args(
            trajectory, tito_keep_versions=1, tito_control_url=server.url, tito_control_token=TOKEN, num_rollout=1
        )
        assert numbers(generate_rollout_partial_async(args, 0, BufferedSource(args))) == [0, 1]

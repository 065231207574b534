"""The data source that loses no prompt: groups under way are in a checkpoint, and come first after a restart."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer_hooks.rollouts.generators import Stage, dead, trajectory
from tests.trainer_hooks.rollouts.slime_process import SlimeProcess, rollout_args, untouched
from tests.trainer_hooks.rollouts.test_partial_async_rollout import numbers
from tests.trainer_hooks.slime_stand_in import Sample
from trainer_hooks.slime.data_source import FanOutDataSource
from trainer_hooks.slime.errors import ConversionError
from trainer_hooks.slime.partial_async_rollout import generate_rollout_partial_async


def source_args(directory: Path, **changes: Any) -> Any:
    return rollout_args(changes.pop("script", trajectory), save=str(directory), load=str(directory), **changes)


def indices(groups: list[list[Sample]]) -> list[int | None]:
    return [group[0].group_index for group in groups]


def test_groups_that_were_put_back_come_first_in_their_old_order(slime: SlimeProcess, tmp_path: Path) -> None:
    source = FanOutDataSource(source_args(tmp_path))
    groups = source.take(4)
    source.give_back([groups[2], groups[0]])
    assert indices(source.get_samples(3)) == [0, 2, 4]
    assert source.get_buffer_length() == 0


def test_a_fanned_out_group_that_is_put_back_becomes_clean_prompts(slime: SlimeProcess, tmp_path: Path) -> None:
    source = FanOutDataSource(source_args(tmp_path))
    [group] = source.get_samples(1)
    before = untouched(group)
    source.add_samples([[trajectory(group[0], segments=3, reward=None), dead(group[1])]])
    [again] = source.get_samples(1)
    assert again == before


def test_what_generation_did_to_a_group_does_not_come_back(slime: SlimeProcess, tmp_path: Path) -> None:
    source = FanOutDataSource(source_args(tmp_path))
    [group] = source.take(1)
    before = untouched(group)
    group[0].metadata["retry_count"] = 3
    group[1].tokens.append(5)
    source.give_back([group])
    assert source.get_samples(1) == [before]


def test_a_group_of_another_size_is_refused(slime: SlimeProcess, tmp_path: Path) -> None:
    source = FanOutDataSource(source_args(tmp_path))
    [group] = source.get_samples(1)
    with pytest.raises(ConversionError, match="a group of 1 runs"):
        source.add_samples([group[:1]])


def pop_last(args: Any, rollout_id: None, buffer: list[Any], count: int) -> list[Any]:
    found = buffer[-count:]
    del buffer[-count:]
    return found


def test_slimes_buffer_filter_is_asked(slime: SlimeProcess, tmp_path: Path) -> None:
    source = FanOutDataSource(source_args(tmp_path, buffer_filter_path=f"{__name__}.pop_last"))
    source.add_samples(source.get_samples(3))
    assert indices(source.get_samples(2)) == [1, 2]
    assert indices(source.get_samples(2)) == [0, 3]


def test_a_checkpoint_holds_what_had_not_trained(slime: SlimeProcess, tmp_path: Path) -> None:
    args = source_args(tmp_path)
    source = FanOutDataSource(args)
    groups = source.take(6)
    prompts = [group[0].prompt for group in groups]
    source.deliver(0, groups[0:1])
    source.deliver(1, groups[1:2])  # generated ahead of the training of 0
    source.drop(groups[2:3])
    source.give_back(groups[3:4])
    source.save(0)  # 4 and 5 are under way
    restarted = FanOutDataSource(args)
    restarted.load(0)
    again = restarted.take(5)
    assert indices(again) == [1, 3, 4, 5, 6]
    assert [group[0].prompt for group in again[:4]] == [prompts[i] for i in (1, 3, 4, 5)]
    assert [sample.index for sample in again[4]] == [12, 13]
    assert all(isinstance(sample, Sample) and sample.status is Sample.Status.PENDING for sample in again[0])


def test_a_checkpoint_of_another_data_source_is_continued_from_its_position(
    slime: SlimeProcess, tmp_path: Path
) -> None:
    args = source_args(tmp_path)
    args.checkpoints[7] = (20, 10)
    source = FanOutDataSource(args)
    source.load(7)
    assert indices(source.get_samples(1)) == [10]


def test_a_checkpoint_that_fails_leaves_the_old_one(
    slime: SlimeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = source_args(tmp_path)
    source = FanOutDataSource(args)
    source.take(1)
    source.save(0)
    source.take(1)
    monkeypatch.setattr("os.fsync", lambda fd: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        source.save(0)
    restarted = FanOutDataSource(args)
    restarted.load(0)
    assert restarted.get_buffer_length() == 1


def test_slimes_other_calls_reach_its_own_source(slime: SlimeProcess, tmp_path: Path) -> None:
    source = FanOutDataSource(source_args(tmp_path))
    source.update_metadata({"a": 1})
    assert source.get_metadata() == {"a": 1}
    assert len(source) == 1000


def test_nothing_is_written_without_a_global_data_set(slime: SlimeProcess, tmp_path: Path) -> None:
    source = FanOutDataSource(source_args(tmp_path, rollout_global_dataset=False))
    source.take(1)
    source.save(0)
    source.load(0)
    assert not list(tmp_path.iterdir())


def test_it_can_be_saved_while_the_worker_takes_groups(slime: SlimeProcess, tmp_path: Path) -> None:
    args = source_args(tmp_path)
    source = FanOutDataSource(args)
    done = threading.Event()

    def take() -> None:
        for _ in range(200):
            source.give_back(source.take(2)[:1])
        done.set()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(take)
        while not done.is_set():
            source.save(0)
        future.result()
    restarted = FanOutDataSource(args)
    restarted.load(0)
    _, next_group = args.checkpoints[0]
    assert indices(restarted.take(restarted.get_buffer_length() + 1)) == list(range(next_group + 1))


@settings(max_examples=25, deadline=None)
@given(
    deaths=st.lists(st.integers(0, 3), min_size=1, max_size=6).filter(lambda deaths: min(deaths) < 3),
    ahead=st.integers(2, 5),
    crashes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_over_restarts_every_prompt_trains_once_or_is_counted_as_dead(
    tmp_path_factory: pytest.TempPathFactory, deaths: list[int], ahead: int, crashes: list[int]
) -> None:
    """slime's order of calls: a batch is generated ahead, the checkpoint comes after the training."""
    tried: dict[int, int] = {}

    def script(sample: Sample) -> list[Sample]:
        assert sample.index is not None
        tried[sample.index] = tried.get(sample.index, 0) + 1
        dies = tried[sample.index] <= deaths[sample.index % len(deaths)]
        return dead(sample) if dies else trajectory(sample)

    with SlimeProcess():
        args = source_args(
            tmp_path_factory.mktemp("run"), script=script, over_sampling_batch_size=ahead, num_rollout=10**6
        )
        trained: list[int] = []
        rollout_id = 0
        source = FanOutDataSource(args)
        for steps in crashes:
            batch = numbers(generate_rollout_partial_async(args, rollout_id, source))
            for _ in range(steps):
                next_batch = numbers(generate_rollout_partial_async(args, rollout_id + 1, source))
                trained += batch
                source.save(rollout_id)
                batch, rollout_id = next_batch, rollout_id + 1
            generate_rollout_partial_async(copy.copy(args_with_last(args, rollout_id + 1)), rollout_id + 1, source)
            source = FanOutDataSource(args)
            source.load(rollout_id - 1)
        assert len(trained) == len(set(trained))
        left = indices(source.take(source.get_buffer_length()))
        accounted = set(trained) | set(left)
        missing = set(range(source._dataset.sample_group_index)) - accounted
        # a group is missing only if all its runs were dead after three tries
        assert all(deaths[(2 * g + i) % len(deaths)] >= 3 for g in missing for i in range(2))


def args_with_last(args: Any, rollout_id: int) -> Any:
    """The same arguments, with this rollout as the last: its worker stops, as at the end of a process."""
    changed = copy.copy(args)
    changed.num_rollout = rollout_id + 1
    return changed


def test_a_worker_tells_the_source_what_became_of_its_groups(
    slime: SlimeProcess, stage: Stage, aside: ThreadPoolExecutor, tmp_path: Path
) -> None:
    args = source_args(tmp_path, script=stage, over_sampling_batch_size=3)
    source = FanOutDataSource(args)
    call = aside.submit(generate_rollout_partial_async, args, 0, source)
    stage.wait_started(*range(6))
    stage.let_go(0, 1, 4, 5)
    assert numbers(call.result(30)) == [0, 2]
    source.save(0)
    restarted = FanOutDataSource(args)
    restarted.load(0)
    assert indices(restarted.take(1)) == [1]
    stage.let_go(*range(2, 30))
    args.num_rollout = 2
    generate_rollout_partial_async(args, 1, source)

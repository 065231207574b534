"""Fully asynchronous rollouts: the pool stays full while the trainer trains."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.trainer_hooks.rollouts.generators import Stage, trajectory
from tests.trainer_hooks.rollouts.slime_process import BufferedSource, SlimeProcess, rollout_args
from tests.trainer_hooks.rollouts.test_partial_async_rollout import numbers
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.fully_async_rollout import generate_rollout_fully_async


def test_the_pool_is_filled_between_calls_until_a_batch_waits(
    slime: SlimeProcess, stage: Stage, aside: ThreadPoolExecutor
) -> None:
    args = rollout_args(stage, tito_rollout_concurrency=6)
    source = BufferedSource(args)
    call = aside.submit(generate_rollout_fully_async, args, 0, source)
    stage.wait_started(*range(6))
    stage.let_go(*range(4))
    assert numbers(call.result(30)) == [0, 1]
    stage.wait_started(*range(10))  # nobody collects, and groups 3 and 4 have started all the same
    stage.let_go(*range(4, 30))
    slime.loop.call(lambda: None)
    worker = source.tito_rollout_worker

    def settled() -> tuple[int, int]:
        return worker.in_flight, worker.left_over

    while slime.loop.call(settled)[0]:
        pass
    in_flight, left_over = slime.loop.call(settled)
    # a batch of two waits, and what ran when it was complete: no more than a pool
    assert in_flight == 0
    assert 2 <= left_over <= 2 + 3
    args.num_rollout = 2
    assert numbers(generate_rollout_fully_async(args, 1, source)) == [2, 3]


def test_left_overs_come_oldest_first_and_nothing_is_lost(slime: SlimeProcess) -> None:
    args = rollout_args(trajectory, tito_rollout_concurrency=20)
    source = BufferedSource(args)
    batches = []
    for rollout_id in range(10):
        args.num_rollout = 10
        batches.append(numbers(generate_rollout_fully_async(args, rollout_id, source)))
    delivered = [number for batch in batches for number in batch]
    given_back = [group[0].group_index for group in source.buffer]
    assert all(batch == sorted(batch) for batch in batches)
    assert sorted(delivered + given_back) == list(range(source.sample_group_index))
    assert source.tito_rollout_worker is None


def test_evaluation_leaves_running_agents_alone(
    slime: SlimeProcess, stage: Stage, aside: ThreadPoolExecutor
) -> None:
    args = rollout_args(stage, tito_rollout_concurrency=6)
    source = BufferedSource(args)
    call = aside.submit(generate_rollout_fully_async, args, 0, source)
    stage.wait_started(*range(6))
    stage.let_go(*range(4))
    call.result(30)
    assert generate_rollout_fully_async(args, 0, source, evaluation=True).data == {"asked": {"rewards": [0.0]}}
    assert not stage.cancelled
    stage.let_go(*range(4, 20))
    args.num_rollout = 2
    generate_rollout_fully_async(args, 1, source)


def test_a_batch_that_slime_would_cut_is_refused(slime: SlimeProcess) -> None:
    args = rollout_args(trajectory, rollout_batch_size=3)
    with pytest.raises(SettingError, match="rollout_batch_size 3"):
        generate_rollout_fully_async(args, 0, BufferedSource(args))

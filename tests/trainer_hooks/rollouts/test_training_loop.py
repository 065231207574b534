"""Ten training steps in one process: real agents, a real sidecar, and an engine whose weights change under them."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_sglang import FakeSGLang, Reply
from tests.fake_sglang.recorder import RecordedRequest
from tests.support.running import Running
from tests.trainer_hooks.dispatching import dispatch_args, plain_agent
from tests.trainer_hooks.rollouts.slime_process import SlimeProcess
from tests.trainer_hooks.rollouts.training_run import ActorGroup, Batch, RolloutManager, slime_for
from tests.trainer_hooks.slime_stand_in import Sample, schedule
from trainer_hooks.slime.data_source import FanOutDataSource
from trainer_hooks.slime.fully_async_rollout import generate_rollout_fully_async
from trainer_hooks.slime.partial_async_rollout import generate_rollout_partial_async
from trainer_hooks.slime.sync_rollout import generate_rollout_sync
from trainer_hooks.slime.train_async_with_rollout_pause import train

STEPS = 10
LONG_FORM = pytest.mark.skipif(
    "TITO_TRAINING_LOOPS" not in os.environ, reason="set TITO_TRAINING_LOOPS=1 to train with every rollout function"
)
STEP_SIZE = 4


def reward(args: Any, sample: Sample, task: Any, result: Any) -> float:
    """`TITO_REWARD_PATH`: groups are not all alike."""
    assert sample.index is not None
    return float(sample.index % 2)


class OneHeldPerVersion:
    """The first reply that new weights begin gets no further than five ids before the next weights come."""

    def __init__(self, engine: FakeSGLang) -> None:
        self._engine = engine
        self._never = asyncio.Event()
        self._seen: set[str] = set()

    def __call__(self, request: RecordedRequest) -> Reply:
        text = "one two three four five six seven eight nine ten"
        version = self._engine.state.weight_version
        if version in self._seen:
            return Reply(text=text)
        self._seen.add(version)
        return Reply(text=text, hold=self._never, hold_after=5)


@pytest.fixture
def run_args(sidecar: Running, tmp_path: Path) -> Any:
    return dispatch_args(
        sidecar,
        tmp_path,
        tito_agent_command=plain_agent(2),
        tito_reward_path=f"{__name__}.reward",
        tito_rollout_concurrency=6,
        tito_rollout_retry_delay_sec=0,
        tito_keep_versions=4,
        tito_pause_timeout_sec=30,
        custom_generate_function_path="trainer_hooks.slime.blackbox_dispatch.generate",
        n_samples_per_prompt=2,
        rollout_batch_size=2,
        over_sampling_batch_size=3,
        global_batch_size=STEP_SIZE,
        start_rollout_id=0,
        num_rollout=STEPS,
        update_weights_interval=1,
        check_weight_update_equal=False,
        release_train=False,
        use_critic=False,
        save_interval=5,
        eval_interval=5,
        rollout_global_dataset=True,
        checkpoints={},
        save=str(tmp_path),
        load=str(tmp_path),
    )


@pytest.mark.parametrize(
    "function",
    [
        generate_rollout_partial_async,
        pytest.param(generate_rollout_fully_async, marks=LONG_FORM),
        pytest.param(generate_rollout_sync, marks=LONG_FORM),
    ],
)
async def test_ten_steps_lose_no_token_and_name_the_weights_of_each(
    sidecar: Running, engine: FakeSGLang, run_args: Any, function: Callable[..., Any]
) -> None:
    goes_on = function is not generate_rollout_sync
    engine.script = OneHeldPerVersion(engine) if goes_on else None
    token = {"Authorization": f"Bearer {sidecar.sidecar.control_token}"}
    with SlimeProcess(), httpx.Client(base_url=sidecar.sidecar.control.url, headers=token) as control:
        source = FanOutDataSource(run_args)
        manager = RolloutManager(run_args, function, source)
        actor = ActorGroup(engine, control)
        await asyncio.to_thread(train, run_args, slime_for(manager, actor))
        assert_nothing_was_lost(actor.trained, source, run_args)
    assert len(actor.trained) == STEPS
    assert len(manager.evaluated) == 2
    assert_each_update_was_in_a_pause(actor)
    for batch in actor.trained:
        assert_one_step_of_whole_groups(batch)
    mixed = assert_tokens_are_the_engines(actor.trained, engine)
    if goes_on:  # else nothing of what this test is about has happened
        assert mixed >= 3
        assert sum(request.outcome == "aborted" for request in engine.requests) >= 3
    engine.assert_i1()


def assert_each_update_was_in_a_pause(actor: ActorGroup) -> None:
    assert [update.version for update in actor.updates] == [str(n) for n in range(1, STEPS + 2)]
    for update in actor.updates:
        assert update.paused and update.active == 0
        assert update.sampled_before == update.sampled_after


def assert_one_step_of_whole_groups(batch: Batch) -> None:
    assert [len(group) for group in batch.groups] == [2, 2]
    [step] = schedule(batch.data["rollout_ids"], STEP_SIZE)
    assert len(step) == len(batch.samples)
    weights = [
        sum(mask) / total / STEP_SIZE
        for mask, total in zip(batch.data["loss_masks"], batch.data["rollout_mask_sums"], strict=True)
    ]
    assert sum(weights) == pytest.approx(1.0)
    told = batch.metrics
    assert told["rollout/num_trajectories"] == STEP_SIZE
    assert told["rollout/groups_delivered"] == 2


def assert_tokens_are_the_engines(trained: list[Batch], engine: FakeSGLang) -> int:
    """Every id that was sampled for a trained run trains once, with the version that sampled it; how many runs were
    sampled by several versions."""
    sampled: dict[str, list[tuple[int, str]]] = {}
    for request in engine.requests:
        assert request.session is not None
        versions = [span["version"] for span in request.weight_versions for _ in range(_length(span))]
        sampled.setdefault(request.session, []).extend(zip(request.output_ids, versions, strict=True))
    seen: Counter[str] = Counter()
    mixed = 0
    for sample in (sample for batch in trained for sample in batch.samples):
        assert not sample.remove_sample
        session = sample.metadata["parent_traj_id"]
        seen[session] += 1
        assert _trained(sample) == sampled[session]
        mixed += len(set(sample.weight_versions)) > 1
        assert sample.metadata.get("partial_rollout", False) == (len(set(sample.weight_versions)) > 1)
    assert set(seen.values()) == {1}
    return mixed


def _trained(sample: Sample) -> list[tuple[int, str]]:
    assert sample.loss_mask is not None
    start = len(sample.tokens) - sample.response_length
    return [
        (token, version)
        for token, mask, version in zip(
            sample.tokens[start:], sample.loss_mask, sample.metadata["full_versions"][start:], strict=True
        )
        if mask
    ]


def _length(span: dict[str, Any]) -> int:
    return int(span["end"]) - int(span["start"])


def assert_nothing_was_lost(trained: list[Batch], source: FanOutDataSource, args: Any) -> None:
    """Every prompt that was taken has trained, is in the data source (as in the last checkpoint), or was counted as
    too old."""
    numbers = [group[0][0].group_index for batch in trained for group in batch.groups]
    assert len(numbers) == len(set(numbers)) == STEPS * 2
    left = [group[0].group_index for group in source.take(source.get_buffer_length())]
    taken = source._dataset.sample_group_index
    too_old = set(range(taken)) - set(numbers) - set(left)
    assert len(too_old) == sum(batch.metrics["rollout/groups_dropped_stale"] for batch in trained)
    assert len(numbers) + len(left) + len(too_old) == taken
    restarted = FanOutDataSource(args)
    restarted.load(STEPS - 1)
    assert [group[0].group_index for group in restarted.take(len(left))] == left

"""Whole runs of our rollout functions with slime's data source and ours; what both save; evaluation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.slime_conformance.checkout import slime_module
from tests.slime_conformance.trainer import rollout_manager, slime_args
from tests.trainer_hooks.rollouts.generators import dead, trajectory
from trainer_hooks.slime.data_source import FanOutDataSource
from trainer_hooks.slime.fully_async_rollout import generate_rollout_fully_async
from trainer_hooks.slime.partial_async_rollout import generate_rollout_partial_async
from trainer_hooks.slime.sync_rollout import generate_rollout_sync

Sample = slime_module("slime.utils.types").Sample
slimes_data_source = slime_module("slime.rollout.data_source").RolloutDataSourceWithBuffer
slime_module("slime.rollout.sglang_rollout")
slime_module("slime.ray.rollout")

FUNCTIONS = [generate_rollout_sync, generate_rollout_partial_async, generate_rollout_fully_async]


def script(sample: Any) -> list[Any]:
    """Two segments; every seventh run dies once."""
    if sample.index % 7 == 3 and not sample.metadata.get("retry_count"):
        return dead(sample)
    sample.metadata["instance_id"] = f"task-{sample.group_index}"
    return trajectory(sample, segments=2, reward=None)


async def rate(args: Any, samples: list[Any], **_: Any) -> list[float]:
    """`--custom-rm-path`: slime hands it the run's unrewarded samples together."""
    return [float(sample.index % 2) for sample in samples]


def note(args: Any, sample: Any) -> None:
    """`--rollout-sample-hook-path`."""
    sample.metadata["hooked"] = True


def args_for(directory: Path, **changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "script": script,
        "custom_generate_function_path": "tests.trainer_hooks.rollouts.generators.generate",
        "custom_rm_path": f"{__name__}.rate",
        "rollout_sample_hook_path": [f"{__name__}.note"],
        "dynamic_sampling_filter_path": "trainer_hooks.slime.filters.check_reward_nonzero_std",
        "buffer_filter_path": None,
        "prompt_data": None,
        "rollout_global_dataset": True,
        "rollout_shuffle": False,
        "n_samples_per_prompt": 2,
        "rollout_batch_size": 2,
        "over_sampling_batch_size": 4,
        "global_batch_size": 4,
        "num_rollout": 3,
        "save": str(directory),
        "load": str(directory),
        "tito_rollout_concurrency": 8,
        "tito_rollout_retry_delay_sec": 0,
    }
    return slime_args(**(values | changes))


@pytest.mark.parametrize("source_type", [FanOutDataSource, slimes_data_source], ids=["ours", "slimes"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_slimes_manager_takes_a_whole_run_and_no_prompt_is_lost(
    function: Any, source_type: Any, tmp_path: Path
) -> None:
    args = args_for(tmp_path)
    manager = rollout_manager(args)
    manager.generate_rollout, manager.data_source = function, source_type(args)
    groups: list[int] = []
    for rollout_id in range(3):
        samples, metrics = manager._get_rollout_data(rollout_id)
        runs = list(dict.fromkeys(sample.rollout_id for sample in samples))
        assert [sample.rollout_id for sample in samples] == [run for run in runs for _ in range(2)]
        assert all(sample.metadata["hooked"] for sample in samples)
        assert metrics["rollout/groups_delivered"] == 2
        data = manager._convert_samples_to_train_data(samples)
        assert len(set(data["rollout_ids"])) == 4
        assert sorted(data["raw_reward"]) == [0.0] * 6 + [1.0] * 2
        groups += dict.fromkeys(sample.group_index for sample in samples)
    assert len(groups) == len(set(groups)) == 6
    left = manager.data_source.get_samples(manager.data_source.get_buffer_length())
    taken = manager.data_source.get_samples(1)[0][0].group_index
    assert sorted([*groups, *(group[0].group_index for group in left)]) == list(range(taken))


def test_what_slime_saves_and_what_we_save_fit_together(tmp_path: Path) -> None:
    args = args_for(tmp_path)
    source = FanOutDataSource(args)
    taken = source.take(5)
    source.deliver(0, taken[:2])
    source.deliver(1, taken[2:4])
    source.save(0)
    assert {path.name for path in (tmp_path / "rollout").iterdir()} == {
        "global_dataset_state_dict_0.pt",
        "tito_groups_0.pkl",
    }
    restarted = FanOutDataSource(args)
    restarted.load(0)
    again = restarted.take(4)
    assert [group[0].group_index for group in again] == [2, 3, 4, 5]
    assert [sample.index for group in again for sample in group] == list(range(4, 12))
    assert all(isinstance(sample, Sample) for group in again for sample in group)
    assert again[0] == taken[2]


def test_evaluation_is_slimes_own(tmp_path: Path) -> None:
    args = args_for(tmp_path, eval_datasets=[], group_rm=False)
    for function in FUNCTIONS:
        output = function(args, 0, FanOutDataSource(args), evaluation=True)
        assert type(output).__name__ == "RolloutFnEvalOutput"
        assert output.data == {}

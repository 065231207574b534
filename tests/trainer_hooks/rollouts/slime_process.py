"""A stand-in for the process in which slime calls rollout functions: its modules, its event loop, its data source.

Written from facts on slime 0.3.1. `SlimeProcess` puts the modules into `sys.modules` and takes them out again.
"""

from __future__ import annotations

import asyncio
import copy
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Self

from tests.trainer_hooks.slime_stand_in import Sample, make_args


@dataclass
class RolloutFnTrainOutput:
    samples: list[Any]
    metrics: dict[str, Any] | None = None


@dataclass
class RolloutFnEvalOutput:
    data: dict[str, Any]
    metrics: dict[str, Any] | None = None


@dataclass
class DynamicFilterOutput:
    keep: Any
    reason: str | None = None
    keep_when_insufficient: bool = False


class LoopThread:
    """slime's `get_async_loop()`: an event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run[T](self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a plain function in the loop."""

        async def work() -> Any:
            return function()

        return self.run(work())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        assert not asyncio.all_tasks(self.loop), "work was left in slime's loop"
        self.loop.close()


class PromptSource:
    """slime's `RolloutDataSource`: prompts 0, 1, ... in groups; ends after `limit` groups, or never."""

    def __init__(self, args: Any, limit: int | None = None) -> None:
        self.args = args
        self.limit = limit
        self.sample_offset = self.sample_index = self.sample_group_index = 0
        self.metadata: dict[str, Any] = {}
        self.saved: dict[int | None, int] = {}

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        groups = []
        for _ in range(num_samples):
            if self.limit is not None and self.sample_group_index >= self.limit:
                break
            size = self.args.n_samples_per_prompt
            number = self.sample_group_index
            groups.append(
                [
                    Sample(
                        index=self.sample_index + i,
                        group_index=number,
                        prompt=f"prompt {number}",
                        metadata={"instance_id": f"task-{number}"},
                    )
                    for i in range(size)
                ]
            )
            self.sample_index += size
            self.sample_group_index += 1
        return groups

    def save(self, rollout_id: int) -> None:
        self.args.checkpoints[rollout_id] = (self.sample_index, self.sample_group_index)

    def load(self, rollout_id: int | None = None) -> None:
        if rollout_id in self.args.checkpoints:
            self.sample_index, self.sample_group_index = self.args.checkpoints[rollout_id]

    def __len__(self) -> int:
        return 1000 if self.limit is None else self.limit


class BufferedSource(PromptSource):
    """slime's `RolloutDataSourceWithBuffer`, its default: groups that are put back come first."""

    def __init__(self, args: Any, limit: int | None = None) -> None:
        super().__init__(args, limit)
        self.buffer: list[list[Sample]] = []

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        found, self.buffer = self.buffer[:num_samples], self.buffer[num_samples:]
        return found + super().get_samples(num_samples - len(found))

    def add_samples(self, samples: list[list[Sample]]) -> None:
        for group in samples:
            assert len(group) == self.args.n_samples_per_prompt
            assert all(isinstance(sample, Sample) for sample in group)
            self.buffer.append(group)


class SlimeProcess:
    """Context manager; `loop` is slime's."""

    def __enter__(self) -> Self:
        self.loop = LoopThread()
        self._before = {name: sys.modules.get(name) for name in self._modules()}
        for name, content in self._modules().items():
            module = ModuleType(name)
            vars(module).update(content)
            sys.modules[name] = module
        return self

    def __exit__(self, *_: object) -> None:
        for name, module in self._before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
        self.loop.close()

    def _modules(self) -> dict[str, dict[str, Any]]:
        return {
            "slime": {"__path__": []},
            "slime.utils": {"__path__": []},
            "slime.rollout": {"__path__": []},
            "slime.rollout.filter_hub": {"__path__": []},
            "slime.rollout.filter_hub.base_types": {"DynamicFilterOutput": DynamicFilterOutput},
            "slime.utils.async_utils": {"get_async_loop": lambda: self.loop},
            "slime.utils.http_utils": {"get_rollout_num_engines": lambda args: args.rollout_num_engines},
            "slime.utils.types": {"Sample": Sample},
            "slime.rollout.base_types": {
                "RolloutFnTrainOutput": RolloutFnTrainOutput,
                "RolloutFnEvalOutput": RolloutFnEvalOutput,
            },
            "slime.rollout.data_source": {"RolloutDataSource": PromptSource},
            "slime.rollout.rm_hub": {"batched_async_rm": batched_async_rm},
            "slime.rollout.sample_hooks": {"apply_rollout_sample_hooks": apply_rollout_sample_hooks},
            "slime.rollout.sglang_rollout": {"generate_rollout": generate_rollout, "GenerateState": _never_aborted},
        }


def _never_aborted(args: Any) -> SimpleNamespace:
    return SimpleNamespace(aborted=False)


async def batched_async_rm(args: Any, samples: list[Sample]) -> list[float]:
    assert all(sample.reward is None for sample in samples)
    return [args.reward_model(sample) for sample in samples]


async def apply_rollout_sample_hooks(args: Any, value: Any, *, evaluation: bool) -> Any:
    for sample in value:
        sample.metadata["hooked"] = args.rollout_sample_hook_path
    return value


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnEvalOutput:
    assert evaluation
    return RolloutFnEvalOutput(data={"asked": {"rewards": [float(rollout_id)]}})


def rollout_args(script: Callable[[Sample], Any], **changes: Any) -> SimpleNamespace:
    """Arguments of a rollout: four agent runs to an optimizer step, in groups of two. `script` is what
    `generators.generate` does."""
    return make_args(
        **{
            "script": script,
            "custom_generate_function_path": "tests.trainer_hooks.rollouts.generators.generate",
            "n_samples_per_prompt": 2,
            "rollout_batch_size": 2,
            "global_batch_size": 4,
            "num_rollout": 1000,
            "rollout_global_dataset": True,
            "checkpoints": {},
            "tito_rollout_concurrency": 8,
            "tito_rollout_retry_delay_sec": 0,
            "save": None,
            "load": None,
        }
        | changes
    )


def shape(data: list[Any]) -> list[list[int]]:
    """Segments of each run of each group."""
    return [[len(run) for run in group] for group in data]


def untouched(group: list[Sample]) -> list[Sample]:
    """A copy, to compare with later."""
    return copy.deepcopy(group)

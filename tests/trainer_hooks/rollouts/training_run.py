"""slime's driver, rollout manager and actor group in one process, with slime 0.3.1's order of calls.

The rollout manager is an actor of one thread: its calls queue, as Ray's do. Weights change as slime changes them:
pause the engine, flush its cache, name the new version, continue. What a test wants to know is written down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx

from tests.fake_sglang import FakeSGLang
from tests.trainer_hooks.slime_stand_in import Sample, check_rollout_ids_annotated, check_train_data, flatten
from trainer_hooks.slime.convert_samples import convert_samples_to_train_data
from trainer_hooks.slime.log_helpers import log_rollout_data
from trainer_hooks.slime.train_async_with_rollout_pause import Slime


@dataclass
class Update:
    """A weight update: its version, the sidecar's pause state in it, and ids sampled before and after it."""

    version: str
    paused: bool
    active: int
    sampled_before: int
    sampled_after: int


@dataclass
class Batch:
    """What one rollout gave: groups, their samples in a row, slime's train data, and its metrics."""

    groups: list[list[list[Sample]]]
    samples: list[Sample]
    data: dict[str, list[Any]]
    metrics: dict[str, Any]


class RolloutManager:
    """slime's, without engines: one rollout function, one data source, conversion by the hook."""

    def __init__(self, args: Any, rollout: Callable[..., Any], data_source: Any) -> None:
        self.args, self.rollout, self.data_source = args, rollout, data_source
        self.evaluated: list[Any] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollout-manager")
        for name in ("generate", "save", "eval", "dispose"):
            method = getattr(self, f"_{name}")
            setattr(self, name, SimpleNamespace(remote=lambda *a, m=method: self._thread.submit(m, *a)))

    def _generate(self, rollout_id: int) -> Batch:
        output = self.rollout(self.args, rollout_id, self.data_source, evaluation=False)
        check_rollout_ids_annotated(output.samples)
        samples = flatten(output.samples)
        assert log_rollout_data(rollout_id, self.args, samples, output.metrics, 1.0) is False
        data = convert_samples_to_train_data(self.args, samples)
        check_train_data(data)
        return Batch(output.samples, samples, data, output.metrics)

    def _save(self, rollout_id: int) -> None:
        self.data_source.save(rollout_id)

    def _eval(self, rollout_id: int) -> None:
        self.evaluated.append(self.rollout(self.args, rollout_id, self.data_source, evaluation=True).data)

    def _dispose(self) -> None:
        self._thread.shutdown(wait=False)


@dataclass
class ActorGroup:
    """slime's training actors: they remember what they trained, and update the engine's weights."""

    engine: FakeSGLang
    control: httpx.Client
    version: int = 0
    trained: list[Batch] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)

    def async_train(self, rollout_id: int, batch: Batch, external_data: Any = None) -> Future[None]:
        self.trained.append(batch)
        time.sleep(0.05)  # agents go on meanwhile
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def save_model(self, rollout_id: int, force_sync: bool) -> None:
        pass

    def update_weights(self) -> None:
        state = self.control.get("/v1/rollout/pause_state").json()
        before = self._sampled()
        self.version += 1
        with httpx.Client(base_url=self.engine.url, timeout=30) as http:
            http.post("/pause_generation", json={}).raise_for_status()
            http.get("/flush_cache", params={"timeout": 10}).raise_for_status()
            body = {"new_version": str(self.version), "abort_all_requests": False}
            http.post("/update_weight_version", json=body).raise_for_status()
            http.post("/continue_generation", json={}).raise_for_status()
        paused = (state["paused"], state["active"])
        self.updates.append(Update(str(self.version), *paused, before, self._sampled()))

    def _sampled(self) -> int:
        return sum(len(request.output_ids) for request in list(self.engine.requests))


def slime_for(manager: RolloutManager, actor: ActorGroup) -> Slime:
    """What `train` uses of slime and ray."""

    def periodic(rollout_id: int, interval: int | None, per_epoch: Any = None, total: Any = None) -> bool:
        last = total is not None and rollout_id == total - 1
        return interval is not None and (last or (rollout_id + 1) % interval == 0)

    def nothing(*_: Any) -> None:
        pass

    return Slime(
        get=lambda future: future.result(),
        configure_logger=nothing,
        init_tracking=nothing,
        finish_tracking=nothing,
        create_placement_groups=lambda args: {"rollout": None},
        create_rollout_manager=lambda args, group: (manager, None),
        create_training_models=lambda args, groups, made: (actor, None),
        should_run_periodic_action=periodic,
    )

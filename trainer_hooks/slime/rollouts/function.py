"""What slime's three rollout functions of this package share: one call from `RolloutManager.generate`.

Check, find or make the worker, collect a batch on slime's own event loop, count, and hand it over as
`[group][run][segment]`. The worker is kept on the data source, which lives as long as the rollout manager; it
is stopped after the last rollout, and when a call fails. One call at a time, as slime makes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from trainer_hooks.control_errors import ControlError
from trainer_hooks.slime.check_args import check_args
from trainer_hooks.slime.control import open_control
from trainer_hooks.slime.rollouts.counts import rollout_metrics
from trainer_hooks.slime.rollouts.group_filter import GroupFilter
from trainer_hooks.slime.rollouts.group_source import group_source
from trainer_hooks.slime.rollouts.policy import Policy
from trainer_hooks.slime.rollouts.run import run_rollout
from trainer_hooks.slime.rollouts.settings import RolloutSettings, last_rollout, sampling_params
from trainer_hooks.slime.rollouts.worker import RolloutWorker
from trainer_hooks.slime.settings import arg, text_setting
from trainer_hooks.slime.slime_modules import load_path, slime_name

logger = logging.getLogger(__name__)

_WORKER = "tito_rollout_worker"


@dataclass(frozen=True)
class Plan:
    """One rollout function. `target`: groups per call. `keeps_worker`: what runs goes on after the call."""

    target: int
    policy: Policy
    keeps_worker: bool


def generate_batch(args: Any, rollout_id: int, data_source: Any, plan: Plan, settings: RolloutSettings) -> Any:
    """slime's `RolloutFnTrainOutput` with exactly `plan.target` groups, in the order in which they were taken.

    Raises `RolloutError`, `SettingError`, `RewardError`; whatever it raises, no agent is left running.
    """
    worker = getattr(data_source, _WORKER, None)
    if worker is None:
        worker = _make_worker(args, data_source, plan, settings)
        setattr(data_source, _WORKER, worker)
    version = _engine_version(args, settings)
    try:
        groups = _run(worker.collect(rollout_id, plan.target, version))
    except BaseException:
        _stop(data_source, worker)
        raise
    if not plan.keeps_worker or last_rollout(args, rollout_id, data_source):
        _stop(data_source, worker)
    data = [group.runs for group in groups]
    _let_users_see(args, data, worker, data_source)
    metrics = rollout_metrics(groups, worker)
    logger.info("rollout %d: %s", rollout_id, " ".join(f"{name}={value:g}" for name, value in metrics.items()))
    return slime_name("slime.rollout.base_types.RolloutFnTrainOutput")(samples=data, metrics=metrics)


def evaluate(args: Any, rollout_id: int, data_source: Any) -> Any:
    """slime's own evaluation, its `RolloutFnEvalOutput`: there `generate` returns the anchor alone, so that slime
    meets no fan-out. Agents of a training rollout that are under way go on."""
    check_args(args)
    return slime_name("slime.rollout.sglang_rollout.generate_rollout")(
        args, rollout_id, data_source, evaluation=True
    )


def _make_worker(args: Any, data_source: Any, plan: Plan, settings: RolloutSettings) -> RolloutWorker:
    async def run(template: Any, position: int) -> list[Any]:
        return await run_rollout(args, template, sampling_params(args, position))

    return RolloutWorker(
        group_source(data_source), run, plan.policy, settings, group_filter=GroupFilter.from_args(args)
    )


def _stop(data_source: Any, worker: RolloutWorker) -> None:
    setattr(data_source, _WORKER, None)
    _run(worker.stop())


def _run[T](work: Coroutine[Any, Any, T]) -> T:
    """On slime's loop, where its HTTP clients and its evaluation live too; an interrupt cancels it."""
    loop = slime_name("slime.utils.async_utils.get_async_loop")().loop
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _engine_version(args: Any, settings: RolloutSettings) -> str | None:
    """The weights that sample now, so that versions are observed in their true order; None if not to be had."""
    if not settings.keep_versions or text_setting(args, "TITO_CONTROL_URL") is None:
        return None
    try:
        with open_control(args) as control:
            version = control.pause_state().get("version")
    except ControlError as error:
        logger.warning("versions are observed from trajectories alone this time: %s", error)
        return None
    return None if version is None else str(version)


def _let_users_see(args: Any, data: list[Any], worker: RolloutWorker, data_source: Any) -> None:
    """slime's hooks on a finished batch; both get `[group][run][segment]`."""
    dropped, worker.filtered = worker.filtered, []
    path = arg(args, "rollout_sample_filter_path")
    if path is not None:
        load_path(path, "rollout_sample_filter_path")(args, data)
    path = arg(args, "rollout_all_samples_process_path")
    if path is not None:
        load_path(path, "rollout_all_samples_process_path")(args, [*data, *dropped], data_source)

"""Hook for `--custom-rollout-log-function-path`: metrics over trajectories beside slime's over samples.

slime is imported only where a rollout function gave no metrics of its own. Runs in slime's rollout actor, one
call at a time, before conversion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer_hooks.slime.check_args import check_args
from trainer_hooks.slime.settings import arg
from trainer_hooks.slime.slime_modules import slime_name
from trainer_hooks.slime.trajectory_metrics import trajectory_metrics


def log_rollout_data(
    rollout_id: int, args: Any, samples: Sequence[Any], rollout_extra_metrics: Any, rollout_time: float
) -> bool:
    """Log `trajectory_metrics`, and return False, so that slime 0.3.1 logs its own as well.

    They are put into `rollout_extra_metrics`, which slime writes with its own in one record; where a rollout
    function returned none (None), they become a record of their own with the same step. Nothing is logged for
    replayed debug data, as in slime. Raises what conversion would raise on the same samples.
    """
    check_args(args)
    if arg(args, "load_debug_rollout_data"):
        return False
    metrics = trajectory_metrics(args, samples)
    if isinstance(rollout_extra_metrics, dict):
        rollout_extra_metrics.update(metrics)
    else:
        _log_alone(rollout_id, args, metrics)
    return False


def _log_alone(rollout_id: int, args: Any, metrics: dict[str, float]) -> None:
    step = slime_name("slime.observability.metric_utils.compute_rollout_step")(args, rollout_id)
    log = slime_name("slime.observability.logging_utils.log")
    log(args, {**metrics, "rollout/step": step}, step_key="rollout/step")

"""What a rollout function tells slime beside the samples: where every group went, and how old its tokens are.

The metrics of what trains (segments, rewards, versions, untrainable tokens) are `trajectory_metrics`, which
`log_rollout_data` adds to these.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from trainer_hooks.slime.rollouts.group import Group
from trainer_hooks.slime.rollouts.worker import RolloutWorker

_COUNTED = {
    "taken": "groups_taken",
    "delivered": "groups_delivered",
    "exhausted": "groups_exhausted",
    "stale": "groups_dropped_stale",
    "given_back": "groups_given_back",
    "runs_retried": "runs_retried",
    "runs_dead": "runs_dead",
}
"""Over all calls, `taken` = delivered + dropped + given back + in flight + left over; exhausted groups are dropped,
except in synchronous rollouts, which deliver them as placeholders."""


def rollout_metrics(groups: Sequence[Group], worker: RolloutWorker) -> dict[str, float]:
    """Metrics of one call; names begin with `rollout/`. Resets the worker's counts."""
    counts = worker.take_counts()
    metrics: dict[str, float] = {f"rollout/{name}": counts.get(key, 0) for key, name in _COUNTED.items()}
    metrics["rollout/groups_in_flight"] = worker.in_flight
    metrics["rollout/groups_left_over"] = worker.left_over
    for key, count in counts.items():
        if key.startswith("filtered/"):
            # slime's own name
            metrics[f"rollout/dynamic_filter/drop_{key.removeprefix('filtered/')}"] = count
    gaps = [gap for group in groups for run in group.live() if (gap := worker.window.gap(run)) is not None]
    if gaps:
        metrics["rollout/observed_version_gap_mean"] = statistics.fmean(gaps)
        metrics["rollout/observed_version_gap_max"] = max(gaps)
    return metrics

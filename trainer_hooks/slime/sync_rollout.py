"""`--rollout-function-path trainer_hooks.slime.sync_rollout.generate_rollout_sync`: one batch, nothing afterwards.

Every call runs `rollout_batch_size` groups and returns when all have ended; nothing is in flight between calls,
so all tokens come from one version. Dead runs are tried again in place, each time with a fresh session; what is
still dead then stays in the batch as a placeholder that trains nothing. One call at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainer_hooks.slime.check_args import check_args
from trainer_hooks.slime.rollouts.function import Plan, evaluate, generate_batch
from trainer_hooks.slime.rollouts.policy import Policy
from trainer_hooks.slime.rollouts.settings import RolloutSettings, batch_groups


def generate_rollout_sync(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """slime's `RolloutFnTrainOutput` with `[group][run][segment]`, or its `RolloutFnEvalOutput`."""
    if evaluation:
        return evaluate(args, rollout_id, data_source)
    check_args(args)
    target = batch_groups(args)
    plan = Plan(target, Policy(pool=target, keep_dead=True), keeps_worker=False)
    settings = replace(RolloutSettings.read(args), keep_versions=0)  # all of a batch is of one version
    return generate_batch(args, rollout_id, data_source, plan, settings)

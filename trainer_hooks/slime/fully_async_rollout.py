"""`--rollout-function-path trainer_hooks.slime.fully_async_rollout.generate_rollout_fully_async`.

Agents run all the time: a pool of groups, enough for `TITO_ROLLOUT_CONCURRENCY` agent runs, is kept full while the
trainer trains, until a whole batch is finished and waiting. Every call returns `rollout_batch_size` groups, the
oldest that are finished. One call at a time.
"""

from __future__ import annotations

from typing import Any

from trainer_hooks.slime.check_args import check_args
from trainer_hooks.slime.rollouts.function import Plan, evaluate, generate_batch
from trainer_hooks.slime.rollouts.policy import Policy
from trainer_hooks.slime.rollouts.settings import RolloutSettings, batch_groups


def generate_rollout_fully_async(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """slime's `RolloutFnTrainOutput` with `[group][run][segment]`, or its `RolloutFnEvalOutput`."""
    if evaluation:
        return evaluate(args, rollout_id, data_source)
    check_args(args)
    settings = RolloutSettings.read(args)
    policy = Policy(pool=settings.pool, surplus=True, between_calls=True)
    return generate_batch(args, rollout_id, data_source, Plan(batch_groups(args), policy, True), settings)

"""`--rollout-function-path trainer_hooks.slime.partial_async_rollout.generate_rollout_partial_async`.

Every call returns exactly `k * global_batch_size / n_samples_per_prompt` whole groups, the oldest that are
finished; the rest stays in flight across the weight update (their tokens name their versions) and counts for the
next call. While a call waits, `over_sampling_batch_size` groups are kept in flight; between calls none is started.
One call at a time.
"""

from __future__ import annotations

from typing import Any

from trainer_hooks.slime.check_args import check_args
from trainer_hooks.slime.rollouts.function import Plan, evaluate, generate_batch
from trainer_hooks.slime.rollouts.policy import Policy
from trainer_hooks.slime.rollouts.settings import RolloutSettings, partial_groups
from trainer_hooks.slime.settings import arg


def generate_rollout_partial_async(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """slime's `RolloutFnTrainOutput` with `[group][run][segment]`, or its `RolloutFnEvalOutput`."""
    if evaluation:
        return evaluate(args, rollout_id, data_source)
    check_args(args)
    target = partial_groups(args)
    ahead = arg(args, "over_sampling_batch_size") or arg(args, "rollout_batch_size") or target
    plan = Plan(target, Policy(pool=max(target, int(ahead)), surplus=True), keeps_worker=True)
    return generate_batch(args, rollout_id, data_source, plan, RolloutSettings.read(args))

"""Our hooks as slime's plugin contract tests call them.

Those tests pass an empty `args` and two samples of one token each that belong to no group and have no prompt;
one of them looks for an attribute that its own reference sets. What slime itself always provides is added here,
and nothing of the hooks' work is done here.
"""

from __future__ import annotations

from typing import Any

from tests.slime_conformance.trainer import slime_args
from trainer_hooks.slime import convert_samples, log_helpers
from trainer_hooks.slime import reward_post_process as rewards


def _placed(samples: list[Any]) -> list[Any]:
    for sample in samples:
        sample.group_index = 0
        sample.tokens = [1, *sample.tokens]
    return samples


def reward_post_process(args: Any, samples: list[Any]) -> Any:
    return rewards.reward_post_process(slime_args(), _placed(samples))


def convert_samples_to_train_data(args: Any, samples: list[Any]) -> Any:
    return convert_samples.convert_samples_to_train_data(slime_args(), _placed(samples))


def log_rollout_data(
    rollout_id: int, args: Any, samples: list[Any], rollout_extra_metrics: Any, rollout_time: float
) -> bool:
    for sample in _placed(samples):
        sample.reward, sample.response_length = 1.0, 1
        sample.tokens = [1, 2]
    logged = log_helpers.log_rollout_data(
        rollout_id, slime_args(global_batch_size=1), samples, rollout_extra_metrics, rollout_time
    )
    assert rollout_extra_metrics["rollout/num_trajectories"] == 1
    args.logged_rollout_id = rollout_id
    return logged

"""What the rollout functions are told: how many groups, how many at a time, how often again, how old.

Everything is read once per call and checked before anything starts. Pure apart from looking at the environment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.settings import arg, number_setting
from trainer_hooks.slime.slime_modules import slime_name


@dataclass(frozen=True)
class RolloutSettings:
    """Common to all. `group_size` is `--n-samples-per-prompt`; `concurrency` counts agent runs."""

    group_size: int
    concurrency: int
    retries: int
    retry_delay: float
    keep_versions: int
    max_dead_groups: int

    @classmethod
    def read(cls, args: Any) -> RolloutSettings:
        """From `TITO_*`, or their lower-case keys on `args`. Raises `SettingError`."""

        def whole(name: str, default: int, least: int) -> int:
            return int(number_setting(args, name, default, least=least, whole=True))

        concurrency = whole("TITO_ROLLOUT_CONCURRENCY", 0, 0)
        return cls(
            group_size=_positive(args, "n_samples_per_prompt"),
            concurrency=concurrency or _slime_concurrency(args),
            retries=whole("TITO_ROLLOUT_RETRIES", 2, 0),
            retry_delay=number_setting(args, "TITO_ROLLOUT_RETRY_DELAY_SEC", 1.0, most=600.0),
            keep_versions=whole("TITO_KEEP_VERSIONS", 0, 0),
            max_dead_groups=whole("TITO_ROLLOUT_MAX_DEAD_GROUPS", 32, 1),
        )

    @property
    def pool(self) -> int:
        """Groups that keep `concurrency` agent runs busy."""
        return math.ceil(self.concurrency / self.group_size)


def batch_groups(args: Any) -> int:
    """`--rollout-batch-size`, refused where its last agent runs would be dropped: slime trains whole steps only."""
    groups = _positive(args, "rollout_batch_size")
    step = arg(args, "global_batch_size")
    runs = groups * _positive(args, "n_samples_per_prompt")
    if step is not None and runs % step:
        raise SettingError(
            f"rollout_batch_size {groups} makes {runs} agent runs, no multiple of global_batch_size {step}; slime "
            "drops the rest, so change one of them"
        )
    return groups


def partial_groups(args: Any) -> int:
    """Whole groups per partial rollout: `k * global_batch_size / n_samples_per_prompt`, k = 1 unless
    `TITO_PARTIAL_ROLLOUT_TARGET_GROUPS` or `TITO_PARTIAL_ROLLOUT_TARGET_SAMPLES` (agent runs) says otherwise.
    Raises `SettingError` unless it is a multiple."""
    step, size = _positive(args, "global_batch_size"), _positive(args, "n_samples_per_prompt")
    if step % size:
        raise SettingError(
            f"global_batch_size is {step}, no multiple of n_samples_per_prompt {size}; an optimizer step would end "
            "within a group"
        )
    asked = {}
    for name, unit in (("TITO_PARTIAL_ROLLOUT_TARGET_GROUPS", size), ("TITO_PARTIAL_ROLLOUT_TARGET_SAMPLES", 1)):
        count = int(number_setting(args, name, 0, whole=True))
        if count:
            asked[name] = count * unit
            if asked[name] % step:
                raise SettingError(
                    f"{name} is {count}, which is {asked[name]} agent runs and no multiple of global_batch_size "
                    f"{step}; slime would drop the rest, use a multiple of {step // unit}"
                )
    if len(set(asked.values())) > 1:
        raise SettingError(f"{' and '.join(asked)} differ: {asked} agent runs; set one of them")
    return next(iter(asked.values()), step) // size


def sampling_params(args: Any, position: int) -> dict[str, Any]:
    """What slime's own rollouts hand to `generate`, for the agent run at `position` of its group."""
    params: dict[str, Any] = {
        "temperature": arg(args, "rollout_temperature", 1.0),
        "top_p": arg(args, "rollout_top_p", 1.0),
        "top_k": arg(args, "rollout_top_k", -1),
        "max_new_tokens": arg(args, "rollout_max_response_len"),
        "stop": arg(args, "rollout_stop"),
        "stop_token_ids": arg(args, "rollout_stop_token_ids"),
        "skip_special_tokens": arg(args, "rollout_skip_special_tokens", True),
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }
    if arg(args, "sglang_enable_deterministic_inference", False):
        params["sampling_seed"] = int(arg(args, "rollout_seed", 42)) + position
    return params


def last_rollout(args: Any, rollout_id: int, data_source: Any) -> bool:
    """Whether no rollout follows. The rollout manager's `num_rollout` is None where epochs were asked for."""
    total = arg(args, "num_rollout")
    if total is None and arg(args, "num_epoch") is not None:
        total = len(data_source) // _positive(args, "rollout_batch_size") * int(args.num_epoch)
    return total is not None and rollout_id + 1 >= total


def _slime_concurrency(args: Any) -> int:
    per_engine = arg(args, "sglang_server_concurrency")
    if per_engine is None:
        raise SettingError(
            "TITO_ROLLOUT_CONCURRENCY is not set and args has no sglang_server_concurrency; say how many agents "
            "may run at a time"
        )
    engines = slime_name("slime.utils.http_utils.get_rollout_num_engines")(args)
    return max(1, int(per_engine) * int(engines))


def _positive(args: Any, name: str) -> int:
    value = arg(args, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(f"{name} is {value!r}; it must be a whole number of at least 1")
    return value

"""A sample's reward in the shape that slime expects: a number, or a dict under `--reward-key`.

Pure functions; safe from any thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainer_hooks.slime.errors import RewardError
from trainer_hooks.slime.settings import arg


def zero_reward(args: Any) -> float | dict[str, float]:
    """0.0, or `{reward_key: 0.0}` where `args.reward_key` is set."""
    key = arg(args, "reward_key")
    return {key: 0.0} if key else 0.0


def terminal_reward(value: Any, args: Any) -> Any:
    """The anchor's reward for the value given to `/session/finalize`; None leaves it to slime's reward model.

    A number becomes `{reward_key: number}` under `--reward-key`. Raises `RewardError` on a dict that slime
    could not read.
    """
    if value is None or args is None:
        return value
    key = arg(args, "reward_key")
    if isinstance(value, Mapping):
        _check_readable(value, key)
        return dict(value)
    return {key: value} if key else value


def finite_reward(sample: Any, args: Any) -> float | None:
    """The sample's reward as a float, or None where it has none or it is not finite.

    Raises `RewardError` where the shape and `--reward-key` disagree: that is a wrong setting, not a
    failed rollout.
    """
    value = sample.reward
    if value is None:
        return None
    key = arg(args, "reward_key")
    if isinstance(value, Mapping):
        _check_readable(value, key)
        value = value[key]
    elif key:
        raise RewardError(
            f"sample.reward is {value!r} while reward_key is {key!r}; the reward model must return a dict "
            "with that key"
        )
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise RewardError(f"sample.reward is {value!r}; it must be a number") from error
    return number if math.isfinite(number) else None


def _check_readable(value: Mapping[str, Any], key: str | None) -> None:
    if not key:
        raise RewardError(f"the reward is a dict with keys {sorted(value)}; name one with --reward-key")
    if key not in value:
        raise RewardError(f"the reward has keys {sorted(value)} but reward_key is {key!r}; set --reward-key to one")

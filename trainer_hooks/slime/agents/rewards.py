"""Where a trajectory's reward comes from: a function, the agent's result file, or slime's reward model.

`TITO_REWARD_SOURCE`: `path` (a function named by `TITO_REWARD_PATH`; the default where that is set), `result_file`
(what the agent's wrapper wrote: only where the policy cannot write it), or `slime` (the default otherwise: no
reward is given, and slime's `--custom-rm-path` or `--rm-type` rates the anchor). No shared state.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer_hooks.daemon_thread import in_daemon_thread
from trainer_hooks.launchers.agent_task import EARLY_STOPS, AgentResult, AgentTask
from trainer_hooks.slime.errors import RewardError
from trainer_hooks.slime.settings import arg, choice_setting, number_setting, text_setting
from trainer_hooks.slime.slime_modules import load_path

Reward = float | dict[str, float]

_SOURCES = ("path", "result_file", "slime")


@dataclass(frozen=True, slots=True)
class RewardSource:
    """Where rewards come from, as the settings say: read before an agent starts, asked when it has ended."""

    args: Any = field(repr=False)
    source: str
    path: str | None
    function: Callable[..., Any] | None
    timeout_seconds: float
    early_stop: float | None

    @classmethod
    def read(cls, args: Any) -> RewardSource:
        """From `TITO_REWARD_*` and `TITO_EARLY_STOP_REWARD`. Raises `SettingError`."""
        path = text_setting(args, "TITO_REWARD_PATH")
        source = choice_setting(args, "TITO_REWARD_SOURCE", _SOURCES, "path" if path else "slime")
        early = text_setting(args, "TITO_EARLY_STOP_REWARD")
        return cls(
            args,
            source,
            path,
            load_path(path or "", "TITO_REWARD_PATH") if source == "path" else None,
            number_setting(args, "TITO_REWARD_TIMEOUT_SEC", 600.0),
            None if early is None else number_setting(args, "TITO_EARLY_STOP_REWARD", 0.0, least=-math.inf),
        )

    async def reward_of(self, sample: Any, task: AgentTask, result: AgentResult) -> Reward | None:
        """The terminal reward, or None where slime's reward model is to give it.

        A reward function is `(args, sample, task, result) -> number or dict of numbers`, async or not (then it
        runs in a thread of its own). Raises `RewardError` where it raises, is late, or its reward is not finite,
        or is none that slime can read.
        """
        if self.source == "slime":
            return None
        if self.source == "result_file":
            return self._of_file(result)
        assert self.function is not None
        limit = asyncio.timeout(self.timeout_seconds)
        try:
            async with limit:
                value = await _call(self.function, self.args, sample, task, result)
        except Exception as error:
            if limit.expired():
                late = f"within TITO_REWARD_TIMEOUT_SEC, {self.timeout_seconds:g} s"
                raise RewardError(f"{self.path} gave no reward {late}") from error
            raise RewardError(f"{self.path} raised {type(error).__name__}: {error}") from error
        return self._readable(checked_reward(value, f"{self.path} returned"))

    def _of_file(self, result: AgentResult) -> Reward:
        if result.reward is not None:
            return self._readable(checked_reward(result.reward, "the agent's result file has the reward"))
        if result.outcome in EARLY_STOPS and self.early_stop is not None:
            return self.early_stop
        raise RewardError(
            f"the agent ({result.outcome}) left no reward in its result file; write one to $TITO_RESULT_FILE, or "
            "set TITO_EARLY_STOP_REWARD for runs that end early"
        )

    def _readable(self, reward: Reward) -> Reward:
        key = arg(self.args, "reward_key")
        if isinstance(reward, dict) and key not in reward:
            raise RewardError(
                f"the reward has {sorted(reward)} but --reward-key is {key!r}; it must name one of them"
            )
        return reward


def checked_reward(value: Any, what: str) -> Reward:
    """A float, or a dict of floats, all finite. Raises `RewardError`."""
    if isinstance(value, Mapping):
        if not value:
            raise RewardError(f"{what} an empty object; it must hold numbers")
        return {str(name): _finite(number, f"{what} {name!r}:") for name, number in value.items()}
    return _finite(value, what)


async def _call(function: Any, *arguments: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    value = await in_daemon_thread(function, *arguments)
    return await value if inspect.isawaitable(value) else value


def _finite(value: Any, what: str) -> float:
    if value is None or isinstance(value, (str, bytes)):
        raise RewardError(f"{what} {value!r}; a reward is a number")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise RewardError(f"{what} {value!r}; a reward is a number") from error
    if not math.isfinite(number):
        raise RewardError(f"{what} {number}; a reward must be finite")
    return number

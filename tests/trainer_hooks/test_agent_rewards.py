"""Where rewards come from, and what is no reward."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.running import Running
from tests.support.waiting import LIVENESS
from tests.trainer_hooks.dispatching import SAMPLING, dispatch_args, plain_agent, task_sample
from tests.trainer_hooks.slime_stand_in import Sample, make_args
from trainer_hooks.launchers.agent_task import AgentResult
from trainer_hooks.slime.agents.rewards import RewardSource
from trainer_hooks.slime.blackbox_dispatch import generate
from trainer_hooks.slime.errors import RewardError, SettingError


async def given(args: Any, sample: Any, task: Any, result: Any) -> Any:
    return sample


def given_sync(args: Any, sample: Any, task: Any, result: Any) -> Any:
    return sample


async def raising(args: Any, sample: Any, task: Any, result: Any) -> float:
    raise KeyError("tests")


async def timing_out_itself(args: Any, sample: Any, task: Any, result: Any) -> float:
    raise TimeoutError("the judge's own")


def late_and_blocking(args: Any, sample: Any, task: Any, result: Any) -> float:
    threading.Event().wait()
    return 1.0


async def late(args: Any, sample: Any, task: Any, result: Any) -> float:
    await asyncio.Event().wait()
    return 1.0


async def reward(value: Any, result: AgentResult | None = None, **settings: Any) -> Any:
    """What `RewardSource` makes of a function that returns `value`."""
    args = make_args(**settings)
    return await RewardSource.read(args).reward_of(value, None, result or AgentResult())  # type: ignore[arg-type]


@pytest.mark.parametrize("function", ["given", "given_sync"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (np.float32(0.5), 0.5),
        (True, 1.0),
        ({"a": 1, "b": np.int64(2)}, {"a": 1.0, "b": 2.0}),
        (-3.5, -3.5),
    ],
)
async def test_a_function_s_reward_is_a_number_or_numbers(function: str, value: Any, expected: Any) -> None:
    found = await reward(value, tito_reward_path=f"{__name__}.{function}", reward_key="a")
    assert found == expected
    assert all(type(number) is float for number in (found.values() if isinstance(found, dict) else [found]))


@pytest.mark.parametrize(
    "value", [None, math.nan, math.inf, "1.0", {}, {"a": math.nan}, {"a": None}, [1.0], object()]
)
async def test_what_is_no_finite_number_is_no_reward(value: Any) -> None:
    with pytest.raises(RewardError, match="given returned"):
        await reward(value, tito_reward_path=f"{__name__}.given")


async def test_numbers_without_the_one_that_slime_reads_are_no_reward() -> None:
    for key in ("score", None):
        with pytest.raises(RewardError, match=rf"the reward has \['a'\] but --reward-key is {key!r}"):
            await reward({"a": 1}, tito_reward_path=f"{__name__}.given", reward_key=key)
        with pytest.raises(RewardError, match="but --reward-key is"):
            await reward(0, AgentResult(reward={"a": 1}), tito_reward_source="result_file", reward_key=key)


async def test_a_function_that_raises_or_is_late_gives_no_reward() -> None:
    with pytest.raises(RewardError, match="raising raised KeyError: 'tests'"):
        await reward(0, tito_reward_path=f"{__name__}.raising")
    with pytest.raises(RewardError, match="raised TimeoutError: the judge's own"):
        await reward(0, tito_reward_path=f"{__name__}.timing_out_itself")
    for function in ("late", "late_and_blocking"):
        with pytest.raises(RewardError, match=r"no reward within TITO_REWARD_TIMEOUT_SEC, 0\.05 s"):
            await reward(0, tito_reward_path=f"{__name__}.{function}", tito_reward_timeout_sec=0.05)


async def test_many_slow_judges_do_not_hold_each_other_up() -> None:
    settings = {"tito_reward_path": f"{__name__}.late_and_blocking", "tito_reward_timeout_sec": 0.5}
    slow = [asyncio.create_task(reward(0, **settings)) for _ in range(50)]
    async with asyncio.timeout(LIVENESS):
        assert await reward(1, tito_reward_path=f"{__name__}.given_sync") == 1.0
        assert {type(one) for one in await asyncio.gather(*slow, return_exceptions=True)} == {RewardError}


async def test_without_a_function_slime_s_own_reward_model_is_left_to_it() -> None:
    assert await reward(0, AgentResult(reward=5)) is None, "a file that the policy can write is not trusted unasked"
    assert await reward(0, tito_reward_source="slime", tito_reward_path=f"{__name__}.given") is None


async def test_the_result_file_s_reward_is_used_where_it_is_asked_for() -> None:
    asked = {"tito_reward_source": "result_file"}
    assert await reward(0, AgentResult(reward=5), **asked) == 5.0
    with pytest.raises(RewardError, match="left no reward"):
        await reward(0, AgentResult(outcome="turn_limit"), **asked)
    assert await reward(0, AgentResult(outcome="turn_limit"), **asked, tito_early_stop_reward="-0.5") == -0.5
    with pytest.raises(RewardError, match="left no reward"):
        await reward(0, AgentResult(), **asked, tito_early_stop_reward="-0.5")
    with pytest.raises(RewardError, match="a reward is a number"):
        await reward(0, AgentResult(reward="high"), **asked)


@pytest.mark.parametrize(
    "settings",
    [{"tito_reward_path": "no.such.function"}, {"tito_reward_source": "path"}, {"tito_reward_source": "x"}],
)
async def test_a_source_that_makes_no_sense_is_a_wrong_setting(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="TITO_REWARD"):
        await reward(0, **settings)


@pytest.mark.parametrize("function", ["raising", "late", "given"])
async def test_a_trajectory_without_a_reward_is_dead_and_the_reason_is_logged(
    sidecar: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture, function: str
) -> None:
    args = dispatch_args(
        sidecar,
        tmp_path,
        tito_agent_command=plain_agent(1),
        tito_reward_path=f"{__name__}.{function}",
        tito_reward_timeout_sec=0.1,
    )
    template = task_sample()
    [dead] = await generate(args, template, SAMPLING)
    assert dead.status is Sample.Status.ABORTED
    assert dead.metadata["abort_reason"] == "reward_failed"
    assert "rollout_dead reason=reward_failed" in caplog.text and f".{function} " in caplog.text


async def test_a_reward_is_stored_with_the_trajectory(sidecar: Running, tmp_path: Path) -> None:
    args = dispatch_args(
        sidecar,
        tmp_path,
        tito_agent_command=plain_agent(1, '{"reward": 0.25}'),
        tito_reward_source="result_file",
        reward_key="score",
    )
    [sample] = await generate(args, task_sample(), SAMPLING)
    assert sample.reward == {"score": 0.25}
    [segment] = await sidecar.segments(sample.session_id)
    assert (segment["reward"], segment["label"]) == (0.25, "gold")

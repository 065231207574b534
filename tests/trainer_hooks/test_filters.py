"""Groups without a difference between their rewards are dropped, whatever the shape of their rollouts."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from tests.trainer_hooks.batches import Run, make_batch
from tests.trainer_hooks.builders import make_template
from tests.trainer_hooks.slime_stand_in import make_args
from trainer_hooks.slime.errors import RewardError, SettingError
from trainer_hooks.slime.filters import check_reward_nonzero_std


@dataclass
class DynamicFilterOutput:
    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


@pytest.fixture(autouse=True)
def slime_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """slime's module of filter types, and the packages above it."""
    name = "slime.rollout.filter_hub.base_types"
    for parent in ("slime", "slime.rollout", "slime.rollout.filter_hub", name):
        module = ModuleType(parent)
        module.__path__ = []  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, parent, module)
    sys.modules[name].DynamicFilterOutput = DynamicFilterOutput  # type: ignore[attr-defined]


def verdict(runs: list[Run], **changes: Any) -> tuple[bool, str | None]:
    args = make_args(**changes)
    output = check_reward_nonzero_std(args, make_batch(runs, args=args), rollout_id=3)
    assert type(output) is DynamicFilterOutput
    return output.keep, output.reason


def test_one_reward_per_run_counts_and_not_the_zeros_of_its_segments() -> None:
    assert verdict([Run(0, [2, 2, 2], 1.0), Run(0, [2], 1.0)]) == (False, "zero_std_1.0")
    assert verdict([Run(0, [2, 2, 2], 1.0), Run(0, [2], 0.0)]) == (True, None)


def test_single_samples_may_stand_beside_lists_of_samples() -> None:
    single = make_template(7, 0, reward=0.5)
    (fan_out,) = make_batch([Run(0, [2, 2], 0.5)])
    assert check_reward_nonzero_std(make_args(), [single, fan_out]).reason == "zero_std_0.5"
    single.reward = 0.25
    assert check_reward_nonzero_std(make_args(), [fan_out, single]).keep is True


@pytest.mark.parametrize("unrewarded", [None, math.nan, math.inf])
def test_dead_and_unrewarded_runs_make_no_difference(unrewarded: float | None) -> None:
    others = [Run(0, [], dead=True), Run(0, [2], unrewarded)]
    assert verdict([Run(0, [2], 1.0), Run(0, [2], 1.0), *others]) == (False, "zero_std_1.0")
    assert verdict([Run(0, [2], 1.0), Run(0, [2], 0.0), *others]) == (True, None)
    assert verdict(others) == (False, "no_live_trajectory")


def test_one_live_run_has_nothing_to_differ_from() -> None:
    assert verdict([Run(0, [2], 1.0), Run(0, [], dead=True)]) == (False, "zero_std_1.0")


def test_rounding_is_no_difference() -> None:
    assert verdict([Run(0, [2], 0.1 + 0.2), Run(0, [2], 0.3)]) == (False, "zero_std_0.3")


def test_rewards_are_read_by_the_key() -> None:
    runs = [Run(0, [2], 1.0), Run(0, [2], 0.0)]
    assert verdict(runs, reward_key="score") == (True, None)
    with pytest.raises(RewardError, match="reward_key is 'score'"):
        check_reward_nonzero_std(make_args(reward_key="score"), make_batch(runs))


def test_without_slime_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "slime.rollout.filter_hub.base_types", None)
    with pytest.raises(RuntimeError, match="run inside slime's environment"):
        verdict([Run(0, [2], 1.0)])


def test_arguments_under_which_training_goes_wrong_are_refused_here_too() -> None:
    with pytest.raises(SettingError, match="--group-rm"):
        verdict([Run(0, [2], 1.0)], group_rm=True)

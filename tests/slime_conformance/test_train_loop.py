"""Our training loop makes the calls of slime's train_async.py, in its order, with a pause around each update.

Both loops run here, each with actors that only write down what they are asked.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.slime_conformance.checkout import slime_module, slime_path
from trainer_hooks.slime.train_async_with_rollout_pause import Slime, train

CHECKOUT = slime_path()
misc = slime_module("slime.utils.misc")
placement_group = slime_module("slime.ray.placement_group")

Log = list[tuple[Any, ...]]


class Recorder:
    """Any attribute can be called, or its `.remote`; the call is written down and answered with its name."""

    def __init__(self, name: str, log: Log) -> None:
        self._name = name
        self._log = log

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "remote":
            return self
        return Recorder(f"{self._name}.{attribute}", self._log)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._log.append((self._name, args, tuple(sorted(kwargs.items()))))
        return f"{self._name}{args}"


def loop_args(**changes: Any) -> SimpleNamespace:
    """What both loops read."""
    values: dict[str, Any] = {
        "colocate": False,
        "release_train": False,
        "check_weight_update_equal": False,
        "start_rollout_id": 0,
        "num_rollout": 5,
        "use_critic": False,
        "num_critic_only_steps": 0,
        "rollout_global_dataset": True,
        "update_weights_interval": 1,
        "eval_interval": None,
        "save_interval": None,
    }
    return SimpleNamespace(**(values | changes))


def names(log: Log) -> dict[str, Any]:
    """The functions of slime and ray that a loop uses, all written down in `log`."""
    manager, actor = Recorder("manager", log), Recorder("actor", log)
    critic = Recorder("critic", log)

    def get(value: Any) -> Any:
        log.append(("ray.get", value))
        return value

    return {
        "get": get,
        "configure_logger": lambda: None,
        "init_tracking": lambda args: log.append(("init_tracking",)),
        "finish_tracking": lambda args: log.append(("finish_tracking",)),
        "create_placement_groups": lambda args: {"rollout": "groups"},
        "create_rollout_manager": lambda args, groups: (manager, 7),
        "create_training_models": lambda args, groups, manager: (actor, critic),
        "should_run_periodic_action": misc.should_run_periodic_action,
    }


def calls_of_slime(args: Any, monkeypatch: pytest.MonkeyPatch) -> Log:
    """What slime's own train_async.py does. Its argument parser, which needs sglang and Megatron-LM, stays away."""
    arguments = ModuleType("slime.utils.arguments")
    arguments.parse_args = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "slime.utils.arguments", arguments)
    spec = importlib.util.spec_from_file_location("slime_train_async", CHECKOUT / "train_async.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    log: Log = []
    found = names(log)
    monkeypatch.setattr(module, "ray", SimpleNamespace(get=found.pop("get")))
    for name, value in found.items():
        monkeypatch.setattr(module, name, value)
    module.train(args)
    return log


def calls_of_ours(args: Any) -> Log:
    """What ours does; a pause is written down where it begins and ends."""
    log: Log = []

    @contextmanager
    def pause(args: Any, *, reason: str) -> Iterator[None]:
        log.append(("pause",))
        yield
        log.append(("resume",))

    train(args, Slime(**names(log)), pause)
    return log


def first_gets(log: Log) -> Log:
    """Without the second `ray.get` of a batch: slime's loop makes one after its last rollout, of what it has."""
    kept: Log = []
    for call in log:
        if call[0] == "ray.get" and str(call[1]).startswith("manager.generate") and call in kept:
            continue
        kept.append(call)
    return kept


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"update_weights_interval": 2, "num_rollout": 6},
        {"update_weights_interval": 3, "start_rollout_id": 2},
        {"eval_interval": 2, "save_interval": 2},
        {"save_interval": 2, "rollout_global_dataset": False},
        {"use_critic": True, "num_critic_only_steps": 2, "save_interval": 1},
        {"release_train": True, "update_weights_interval": 4},
        {"check_weight_update_equal": True, "num_rollout": 1},
        {"num_rollout": 0},
    ],
    ids=str,
)
def test_the_calls_are_slimes(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = calls_of_slime(loop_args(**changes), monkeypatch)
    ours = calls_of_ours(loop_args(**changes))
    assert [call for call in ours if call[0] not in ("pause", "resume")] == first_gets(theirs)
    updates = [place for place, call in enumerate(ours) if call[0] == "actor.update_weights"]
    assert updates
    for place in updates:
        assert (ours[place - 1], ours[place + 1]) == (("pause",), ("resume",))
    assert ours.count(("pause",)) == len(updates)


def test_every_name_that_the_loop_looks_up_is_slimes() -> None:
    loaded = Slime.load()
    assert loaded.create_training_models is placement_group.create_training_models
    assert loaded.should_run_periodic_action is misc.should_run_periodic_action

"""The training loop: slime's order of calls, with a pause around every weight update."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.train_async_with_rollout_pause import Slime, train

ROOT = Path(__file__).resolve().parents[3]


class Recorder:
    """slime and ray as a list of what was called."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fail_update_at: int | None = None

    def note(self, name: str, result: Any = None) -> Any:
        self.log.append(name)
        return result

    def slime(self) -> Slime:
        def periodic(rollout_id: int, interval: int | None, per_epoch: Any = None, total: Any = None) -> bool:
            last = total is not None and rollout_id == total - 1
            return interval is not None and (last or (rollout_id + 1) % interval == 0)

        return Slime(
            get=lambda future: future(),
            configure_logger=lambda: self.note("logger"),
            init_tracking=lambda args: self.note("tracking"),
            finish_tracking=lambda args: self.note("finish"),
            create_placement_groups=lambda args: self.note("groups", {"rollout": "R"}),
            create_rollout_manager=lambda args, group: self.note(f"manager {group}", (self.manager(), 100)),
            create_training_models=lambda args, groups, manager: self.note("models", self.models(args)),
            should_run_periodic_action=periodic,
        )

    def manager(self) -> Any:
        def method(name: str) -> Any:
            def remote(*values: Any, **named: Any) -> Any:
                words = " ".join(map(str, [*values, *named.values()]))
                self.log.append(f"{name} {words}".strip())
                return lambda: self.note(f"await {name} {words}".strip(), f"batch {words}")

            return SimpleNamespace(remote=remote)

        names = ("generate", "save", "eval", "dispose", "check_weights")
        return SimpleNamespace(**{name: method(name) for name in names})

    def models(self, args: Any) -> Any:
        def update() -> None:
            self.log.append("update")
            if self.fail_update_at == self.log.count("update"):
                raise RuntimeError("NCCL")

        def group(name: str) -> Any:
            def async_train(rollout_id: int, batch: Any, external_data: Any = None) -> Any:
                more = "" if external_data is None else " with values"
                self.log.append(f"{name} trains {batch}{more}")
                return lambda: None

            return SimpleNamespace(
                update_weights=update,
                async_train=async_train,
                create=lambda: self.note(f"{name} create"),
                save_model=lambda rollout_id, force_sync: self.note(f"{name} saves {rollout_id} {force_sync}"),
            )

        return group("actor"), group("critic") if args.use_critic else None

    @contextmanager
    def pause(self, args: Any, *, reason: str) -> Iterator[None]:
        self.log.append(f"pause: {reason}")
        try:
            yield
        finally:
            self.log.append("resume")


def loop_args(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "colocate": False,
            "start_rollout_id": 0,
            "num_rollout": 3,
            "update_weights_interval": 1,
            "check_weight_update_equal": False,
            "release_train": False,
            "use_critic": False,
            "num_critic_only_steps": 0,
            "save_interval": None,
            "eval_interval": None,
            "rollout_global_dataset": True,
        }
        | changes
    )


def run(**changes: Any) -> list[str]:
    recorder = Recorder()
    train(loop_args(**changes), recorder.slime(), recorder.pause)
    return recorder.log


def test_the_order_is_slimes_with_a_pause_around_every_update() -> None:
    def update(number: int) -> list[str]:
        return [f"pause: weight update {number}", "update", "resume"]

    assert run() == [
        "logger", "groups", "tracking", "manager R", "models",
        *update(1),
        "generate 0", "await generate 0", "generate 1", "actor trains batch 0", "await generate 1",
        *update(2),
        "generate 2", "actor trains batch 1", "await generate 2",
        *update(3),
        "actor trains batch 2",
        *update(4),
        "dispose", "await dispose", "finish",
    ]  # fmt: skip


def test_between_updates_the_batch_ahead_is_not_waited_for() -> None:
    log = run(update_weights_interval=2, num_rollout=4)
    assert log.count("update") == 3
    assert log.index("await generate 1") > log.index("actor trains batch 0")
    assert log[log.index("await generate 1") + 1] == "generate 2"
    assert [entry for entry in log if "trains" in entry] == [f"actor trains batch {i}" for i in range(4)]


def test_saves_and_evaluations_come_where_slime_has_them() -> None:
    log = run(save_interval=2, eval_interval=3)
    saved = log.index("actor saves 1 False")
    assert log[saved + 1 : saved + 3] == ["save 1", "await save 1"]
    assert "actor saves 2 True" in log
    assert log.index("eval 2") > len(log) - 1 - log[::-1].index("resume")


def test_a_critic_trains_first_and_alone_while_it_is_told_to() -> None:
    log = run(use_critic=True, num_critic_only_steps=1, num_rollout=2, save_interval=1)
    assert [entry for entry in log if "trains" in entry] == [
        "critic trains batch 0", "critic trains batch 1", "actor trains batch 1 with values",
    ]  # fmt: skip
    assert "actor saves 0 False" not in log and "critic saves 0 False" in log


def test_a_released_trainer_is_made_anew_for_each_step() -> None:
    log = run(release_train=True, num_rollout=2)
    assert log.count("actor create") == 2
    assert [entry for entry in log if "saves" in entry] == ["actor saves 0 True", "actor saves 1 True"]


def test_the_weights_are_compared_where_slime_was_asked_to() -> None:
    log = run(check_weight_update_equal=True)
    assert log.index("await check_weights compare") < log.index("generate 0")


def test_a_failed_update_is_followed_by_a_resume_and_comes_through() -> None:
    recorder = Recorder()
    recorder.fail_update_at = 2
    with pytest.raises(RuntimeError, match="NCCL"):
        train(loop_args(), recorder.slime(), recorder.pause)
    assert recorder.log[-2:] == ["update", "resume"]


def test_engines_on_the_trainers_gpus_are_refused() -> None:
    with pytest.raises(SettingError, match="--colocate"):
        train(loop_args(colocate=True), Recorder().slime(), Recorder().pause)


def test_arguments_that_would_go_wrong_are_refused_before_anything_starts() -> None:
    recorder = Recorder()
    with pytest.raises(SettingError, match="--group-rm"):
        train(loop_args(group_rm=True), recorder.slime(), recorder.pause)
    assert not recorder.log


def test_outside_slime_the_command_says_what_is_missing() -> None:
    command = [sys.executable, "-m", "trainer_hooks.slime.train_async_with_rollout_pause"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, timeout=60)
    assert shown.returncode == 1
    assert "run inside slime's environment" in shown.stderr
    assert "slime.utils.arguments.parse_args" in shown.stderr


STAND_IN = {
    "ray/__init__.py": "def get(x):\n    return x() if callable(x) else x\n",
    "slime/__init__.py": "",
    "slime/utils/__init__.py": "",
    "slime/ray/__init__.py": "",
    "slime/observability/__init__.py": "",
    "slime/utils/arguments.py": (
        "from types import SimpleNamespace\n"
        "def parse_args():\n"
        "    return SimpleNamespace(colocate=False, start_rollout_id=0, num_rollout=1, update_weights_interval=1,\n"
        "        check_weight_update_equal=False, release_train=False, use_critic=False, save_interval=None,\n"
        "        eval_interval=None, rollout_global_dataset=True, tito_pause_around_weight_update=0)\n"
    ),
    "slime/utils/misc.py": "def should_run_periodic_action(*a, **k):\n    return False\n",
    "slime/observability/logging_utils.py": (
        "def configure_logger():\n    pass\ndef init_tracking(args):\n    pass\n"
        "def finish_tracking(args):\n    print('finished')\n"
    ),
    "slime/ray/placement_group.py": (
        "from types import SimpleNamespace as N\n"
        "def create_placement_groups(args):\n    return {'rollout': None}\n"
        "def call(name):\n    return N(remote=lambda *a: lambda: print(name, *a))\n"
        "manager = N(generate=call('generate'), dispose=call('dispose'))\n"
        "def create_rollout_manager(args, pg):\n    return manager, 1\n"
        "def create_training_models(args, pgs, m):\n"
        "    train = lambda *a: lambda: print('train')\n"
        "    return N(update_weights=lambda: print('update'), async_train=train), None\n"
    ),
}


def test_the_command_trains_with_the_slime_that_is_on_the_path(tmp_path: Path) -> None:
    for name, content in STAND_IN.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    command = [sys.executable, "-m", "trainer_hooks.slime.train_async_with_rollout_pause"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    shown = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.split("\n")[:-1] == ["update", "generate 0", "train", "update", "dispose", "finished"]

"""Which launcher: `TITO_LAUNCHER`, `command` by default. No state."""

from __future__ import annotations

from typing import Any

from trainer_hooks.launchers.agent_task import Launcher
from trainer_hooks.slime.settings import text_setting
from trainer_hooks.slime.slime_modules import load_path

SHIPPED = {
    "command": "trainer_hooks.launchers.command.run",
    "kubernetes": "trainer_hooks.launchers.kubernetes.run",
}


def load_launcher(args: Any) -> Launcher:
    """The launcher of a shipped name, or of a dotted path. Raises `SettingError`."""
    name = text_setting(args, "TITO_LAUNCHER", "command") or "command"
    return load_path(SHIPPED.get(name, name), "TITO_LAUNCHER")

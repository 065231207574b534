"""Which launcher: `TITO_LAUNCHER`, `command` by default, and what it means for the session. No state."""

from __future__ import annotations

from typing import Any

from trainer_hooks.launchers.agent_task import Launcher
from trainer_hooks.slime.settings import flag_setting, text_setting
from trainer_hooks.slime.slime_modules import load_path

SHIPPED = {
    "command": "trainer_hooks.launchers.command.run",
    "kubernetes": "trainer_hooks.launchers.kubernetes.run",
}


def load_launcher(args: Any) -> Launcher:
    """The launcher of a shipped name, or of a dotted path. Raises `SettingError`."""
    name = _name(args)
    return load_path(SHIPPED.get(name, name), "TITO_LAUNCHER")


def agent_has_own_sidecar(args: Any) -> bool:
    """Whether the agent calls another sidecar than the one that opens its session: an injected one, or as
    `TITO_SESSION_HAND_OVER` says. Raises `SettingError`."""
    injected = _name(args) in ("kubernetes", SHIPPED["kubernetes"]) and injects(args)
    return flag_setting(args, "TITO_SESSION_HAND_OVER", injected)


def injects(args: Any) -> bool:
    """`TITO_KUBERNETES_INJECT`, on by default: Jobs ask the webhook for a sidecar. Raises `SettingError`."""
    return flag_setting(args, "TITO_KUBERNETES_INJECT", True)


def _name(args: Any) -> str:
    return text_setting(args, "TITO_LAUNCHER", "command") or "command"

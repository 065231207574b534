"""The environment of an agent: built from an allow-list, never inherited.

The trainer's environment holds what the policy must not see: the control token, cloud keys, tokens of hubs.
So an agent gets the variables named in `TITO_AGENT_ENV` (names to copy), what its sample asks for
(`metadata["agent_env"]`), and where its model is. Pure, but for reading the trainer's environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trainer_hooks.launchers.agent_task import AgentTask, TaskError, blame_the_sample
from trainer_hooks.launchers.placeholders import as_text, fill
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.settings import list_setting

DEFAULT_NAMES = ("PATH", "LANG", "LC_ALL", "TZ")

FORBIDDEN_NAMES = frozenset(
    {
        "TITO_CONTROL_TOKEN",
        "TITO_CONTROL_URL",
        "TITO_ENGINE_API_KEY",
        "TITO_ENGINE_ADMIN_KEY",
        "TITO_SESSION_SECRET",
    }
)
"""With one of these an agent could read or end every session, or reach the engine unrecorded."""


def model_environment(task: AgentTask) -> dict[str, str]:
    """Where the agent's model is, as the official SDKs and most agents look for it."""
    return {
        "OPENAI_BASE_URL": task.base_url,
        "OPENAI_API_BASE": task.base_url,  # openai < 1, litellm
        "OPENAI_API_KEY": task.api_key,
        "ANTHROPIC_BASE_URL": task.anthropic_base_url,
        "ANTHROPIC_API_KEY": task.api_key,
        "TITO_SESSION_ID": task.session_id,
        "TITO_INSTANCE_ID": task.instance_id,
    }


def agent_environment(task: AgentTask, own: Mapping[str, str]) -> dict[str, str]:
    """Everything an agent of the command launcher gets; `own` is what the launcher adds (home, task file, ...).

    The model's address wins over all else. Raises `SettingError` on a forbidden name.
    """
    names = list_setting(task.args, "TITO_AGENT_ENV", DEFAULT_NAMES)
    _refuse_forbidden(names, "TITO_AGENT_ENV")
    copied = {name: os.environ[name] for name in names if name in os.environ}
    return {"PATH": os.defpath, **copied, **own, **sample_environment(task), **model_environment(task)}


def sample_environment(task: AgentTask) -> dict[str, str]:
    """The variables in the sample's `metadata["agent_env"]`, placeholders filled.

    Raises `TaskError`, and `SettingError` on a forbidden name.
    """
    asked: Any = task.metadata.get("agent_env") or {}
    if not isinstance(asked, Mapping):
        raise TaskError(f"metadata['agent_env'] is {asked!r}: it must be an object of variables")
    _refuse_forbidden(asked, "metadata['agent_env']")
    with blame_the_sample():
        return {str(name): fill(as_text(value), task) for name, value in asked.items()}


def _refuse_forbidden(names: Any, where: str) -> None:
    wrong = sorted(FORBIDDEN_NAMES.intersection(names))
    if wrong:
        raise SettingError(f"{where} names {', '.join(wrong)}, which no agent may see; leave it out")

"""Placeholders in command lines and Job templates: `{{prompt}}`, `{{metadata.image}}`.

Two braces, so that shell variables, JSON and Go templates stay as they are. Pure functions.
"""

from __future__ import annotations

import json
import re
from typing import Any

from trainer_hooks.launchers.agent_task import AgentTask, TaskError
from trainer_hooks.slime.errors import SettingError

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][\w.-]*)\s*\}\}")


def fill(text: str, task: AgentTask) -> str:
    """`text` with every placeholder replaced once; what a value contains is never looked at again.

    Known are prompt, session_id, instance_id, base_url, anthropic_base_url, scratch and metadata.KEY (the
    session key is not: it would show in process lists). Raises `SettingError` on any other name,
    `TaskError` on a key that this sample's metadata lacks.
    """
    return _PLACEHOLDER.sub(lambda found: _value(found[1], task), text)


def fill_tree(value: Any, task: AgentTask) -> Any:
    """`fill` on every string of a JSON-like value, keys left alone."""
    if isinstance(value, str):
        return fill(value, task)
    if isinstance(value, list):
        return [fill_tree(one, task) for one in value]
    if isinstance(value, dict):
        return {key: fill_tree(one, task) for key, one in value.items()}
    return value


def as_text(value: Any) -> str:
    """Text as it is; anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value(name: str, task: AgentTask) -> str:
    known = {
        "prompt": task.prompt,
        "session_id": task.session_id,
        "instance_id": task.instance_id,
        "base_url": task.base_url,
        "anthropic_base_url": task.anthropic_base_url,
        "scratch": str(task.scratch),
    }
    if name in known:
        return as_text(known[name])
    key = name.removeprefix("metadata.")
    if key != name and key in task.metadata:
        return as_text(task.metadata[key])
    kind = SettingError if key == name else TaskError
    raise kind(
        f"the placeholder {{{{{name}}}}} names nothing; known are {', '.join(known)} and metadata.KEY, with KEY "
        f"one of {', '.join(sorted(map(str, task.metadata))) or 'none on this sample'}"
    )

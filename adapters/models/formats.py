"""How a family writes tool calls and reasoning, as data plus one pure function. No state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning stands between two markers at the start of a reply."""

    opener: str
    closer: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call stands between two markers; `parse` reads what is between them.

    `parse(body)` gives `(name, arguments as JSON text)`, or None if the body is no well-formed call."""

    opener: str
    closer: str
    parse: Callable[[str], tuple[str, str] | None]


def parse_hermes(body: str) -> tuple[str, str] | None:
    """`{"name": ..., "arguments": {...}}`, as Hermes, Qwen2.5 and Qwen3 write calls.

    NaN, infinities and lone surrogates make no call: agents could not read its arguments."""
    try:
        call = json.loads(body)
        if not isinstance(call, dict):
            return None
        name, arguments = call.get("name"), call.get("arguments", {})
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + text).encode()
    except (ValueError, RecursionError):
        return None
    return name, text


HERMES = ToolFormat(opener="<tool_call>", closer="</tool_call>", parse=parse_hermes)
THINK = ReasoningFormat(opener="<think>", closer="</think>")

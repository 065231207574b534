"""What client libraries do to replies between receiving and replaying them. Pure."""

import json
from collections.abc import Sequence
from typing import Any

from tests.invariants.moves import Replay
from tests.invariants.template import parsed_arguments


def replayed(history: Sequence[dict[str, Any]], replay: Replay) -> list[dict[str, Any]]:
    """The history as that client sends it."""
    return [_message(message, replay) for message in history]


def _message(message: dict[str, Any], replay: Replay) -> dict[str, Any]:
    changed = dict(message)
    if replay.punctuate_ids and "tool_call_id" in changed:
        changed["tool_call_id"] = changed["tool_call_id"].replace("_", "-")
    if replay.as_parts and isinstance(changed.get("content"), str):
        changed["content"] = [{"type": "text", "text": half} for half in halves(changed["content"])]
    if message["role"] != "assistant":
        return changed
    if replay.drop_reasoning:
        changed.pop("reasoning_content", None)
    if replay.pad_content and changed.get("content") and isinstance(changed["content"], str):
        changed["content"] += " \n"
    if replay.null_content and not changed.get("content"):
        changed["content"] = None
    if "tool_calls" in changed:
        changed["tool_calls"] = [_call(call, replay) for call in changed["tool_calls"]]
    return changed


def halves(text: str) -> list[str]:
    """The text in two parts."""
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def _call(call: dict[str, Any], replay: Replay) -> dict[str, Any]:
    function = dict(call["function"])
    parsed = parsed_arguments(function["arguments"])
    if replay.respell_arguments and isinstance(parsed, dict):
        function["arguments"] = json.dumps(dict(reversed(parsed.items())), indent=1)
    identifier = call["id"].replace("_", "-") if replay.punctuate_ids else call["id"]
    return {**call, "id": identifier, "function": function}

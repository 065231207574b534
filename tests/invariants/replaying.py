"""An agent's history between two calls: what its client library does to it, and what it adds or rewrites. Pure."""

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.invariants.moves import Ask, Replay
from tests.invariants.template import parsed_arguments

Messages = list[dict[str, Any]]


def replayed(history: Sequence[dict[str, Any]], replay: Replay) -> Messages:
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


def appended(history: Messages, ask: Ask) -> Messages:
    """What the agent adds: results of open calls, what the user says."""
    calls = history[-1].get("tool_calls", ()) if history and history[-1]["role"] == "assistant" else ()
    results: Messages = [
        {"role": "tool", "tool_call_id": open_call["id"], "content": ask.results[index % len(ask.results)]}
        for index, open_call in enumerate(calls)
    ]
    if ask.order < 0:
        for result in results:
            del result["tool_call_id"]
    else:
        random.Random(ask.order).shuffle(results)
    if results and not ask.and_user:
        return results
    return [*results, {"role": "user", "content": ask.text}]


def edited(history: Sequence[dict[str, Any]], index: int, text: str) -> Messages:
    """The history with the text of one message replaced."""
    if not history:
        return []
    changed = list(history)
    at = index % len(changed)
    changed[at] = {**changed[at], "content": text}
    return changed

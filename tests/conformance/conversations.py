"""The matrix's conversations, in the words of OpenAI's chat API. `MARK` ends the text of each reply."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MARK = "zebra"
RESULT = "quagga"
"""Stands in the first appended tool result."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "dictionary",
            "description": "What a word means.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    }
]


@dataclass(frozen=True, slots=True)
class Case:
    """After `history` the policy sends `reply`; `appended` comes next. `cut`: a length limit ended the reply."""

    name: str
    history: tuple[dict[str, Any], ...]
    reply: dict[str, Any]
    appended: tuple[dict[str, Any], ...]
    tools: list[dict[str, Any]] | None
    cut: bool = False


def _call(identifier: str, word: str) -> dict[str, Any]:
    function = {"name": "dictionary", "arguments": json.dumps({"word": word})}
    return {"id": identifier, "type": "function", "function": function}


def _calls(thought: str, *calls: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "reasoning_content": thought, "tool_calls": list(calls)}


def _result(identifier: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identifier, "content": text}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _says(text: str, thought: str | None = None) -> dict[str, Any]:
    spoken: dict[str, Any] = {"role": "assistant", "content": text}
    return spoken if thought is None else {**spoken, "reasoning_content": thought}


def cases() -> list[Case]:
    """One tool result, two parallel ones, a new user message, a mixed tail, a truncated reply; each both soon and
    late in a conversation that holds reasoning, calls, parallel calls and several user turns where it can."""
    opening = ({"role": "system", "content": "You know many animals."}, _user("Which one has stripes?"))
    chat = (*opening, _says("A tiger.", "Cats first."), _user("Another?"))
    one = (_calls("I had better look.", _call("aaaaaaaa1", "stripes")), _result("aaaaaaaa1", "bands of colour"))
    two = (
        _calls("Both at once.", _call("aaaaaaaa2", "okapi"), _call("aaaaaaaa3", "bongo")),
        _result("aaaaaaaa2", "a giraffe"),
        _result("aaaaaaaa3", "an antelope"),
    )
    busy = (*opening, *one, _says("Many have.", "That is all."), _user("Name one."))
    busier = (*opening, *one, *two, _says("Many have.", "That is all."), _user("Name one."))
    asks = _calls("Is it this one?", _call("bbbbbbbb1", f"a {MARK}"))
    asks_twice = _calls("These two.", _call("bbbbbbbb1", "tapir"), _call("bbbbbbbb2", f"a {MARK}"))
    says = _says(f"It is the {MARK}", "It must be.")
    found = _result("bbbbbbbb1", f"like a {RESULT}")
    found_too = _result("bbbbbbbb2", "an equid")
    more = _user("Tell me more.")
    return [
        Case("tool", opening, asks, (found,), TOOLS),
        Case("parallel", opening, asks_twice, (found, found_too), TOOLS),
        Case("tool_later", busy, asks, (found,), TOOLS),
        Case("tool_after_parallel", busier, asks, (found,), TOOLS),
        Case("parallel_later", busy, asks_twice, (found, found_too), TOOLS),
        Case("user", opening, says, (more,), None),
        Case("user_later", chat, says, (more,), None),
        Case("user_after_tools", (*opening, *one), says, (more,), TOOLS),
        Case("user_after_parallel", (*opening, *two), says, (more,), TOOLS),
        Case("mixed", opening, asks, (found, more), TOOLS),
        Case("mixed_later", busy, asks, (found, more), TOOLS),
        Case("cut", chat, _says(f"It is the {MARK}"), (more,), None, cut=True),
        Case("cut_after_tools", (*opening, *one), _says(f"It is the {MARK}"), (more,), TOOLS, cut=True),
    ]

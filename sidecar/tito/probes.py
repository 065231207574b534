"""Synthetic messages with which a template is tried out at start-up. Immutable data, no shared state.

A probe's texts are words that no template prints by itself, so their place in the rendered text tells what the
template does with a message.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from sidecar.tito.messages import Call, Message

CLOCK = datetime(2026, 1, 2, 3, 4, 5)
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
SYSTEM = Message("system", "Be brief.")
QUESTION = Message("user", "What is a sidecar?")
OPENINGS: tuple[tuple[Message, ...], ...] = ((SYSTEM, QUESTION), (QUESTION,))
"""How a conversation may begin: some templates insist on a system message, others refuse one."""


def call(identifier: str, word: str) -> Call:
    """A call of `TOOL`."""
    arguments = {"word": word}
    return Call(identifier, "look_up", json.dumps(arguments), arguments)


def result(identifier: str, text: str) -> Message:
    """What the call `identifier` gave. It bears no name: clients of OpenAI's protocol send none."""
    return Message("tool", text, call_id=identifier)

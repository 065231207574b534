"""A model's reply as the parts that clients know: reasoning, content, tool calls. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete, well-formed call. `arguments` is JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply in the order in which it was written."""

    kind: Literal["reasoning", "content", "tool_call"]
    text: str = ""
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply: the sum of its deltas."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]


def spread(reply: Reply) -> list[Delta]:
    """A reply as deltas: reasoning, content, calls."""
    return [
        *([Delta("reasoning", reply.reasoning)] if reply.reasoning else []),
        *([Delta("content", reply.content)] if reply.content else []),
        *(Delta("tool_call", call=call) for call in reply.calls),
    ]


def join(deltas: list[Delta]) -> Reply:
    """The reply that these deltas make up."""
    return Reply(
        content="".join(delta.text for delta in deltas if delta.kind == "content"),
        reasoning="".join(delta.text for delta in deltas if delta.kind == "reasoning"),
        calls=tuple(delta.call for delta in deltas if delta.call is not None),
    )

"""Which step a request continues, told from the messages alone: a second, slow and plain telling of the rule.

Keeps what the agent was told of each step; expects before a call, learns after it. No I/O.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.invariants.template import Message, bare, normalised

Key = tuple[str, ...]


@dataclass(frozen=True)
class Expectation:
    """`parents` may be continued (none: the request is a new root); `messages[:depth]` is their history."""

    messages: list[Message]
    depth: int
    parents: frozenset[str]


@dataclass
class _Known:
    step_id: str
    exact: Key
    tools: str


@dataclass
class Oracle:
    """All steps of one session that the agent knows of. `kwargs` are the session's template arguments."""

    kwargs: Mapping[str, Any]
    _known: dict[Key, list[_Known]] = field(default_factory=dict)

    def expect(self, messages: Sequence[Message], tools: Any) -> Expectation:
        """The steps with the longest history that begins `messages`; exact ones and equal tools first."""
        normal = normalised(messages)
        lenient, exact = _keys(normal, _lenient), _keys(normal, _exact)
        for depth in range(len(normal), 0, -1):
            found = self._known.get(lenient[:depth], [])
            found = [known for known in found if known.exact == exact[:depth]] or found
            found = [known for known in found if known.tools == json.dumps(tools)] or found
            if found:
                return Expectation(normal, depth, frozenset(known.step_id for known in found))
        return Expectation(normal, 0, frozenset())

    def learn(self, step_id: str, messages: Sequence[Message], reply: Message, tools: Any) -> None:
        """The agent got `reply` to `messages` in that step."""
        normal = normalised([*messages, reply])
        known = _Known(step_id, _keys(normal, _exact), json.dumps(tools))
        siblings = self._known.setdefault(_keys(normal, _lenient), [])
        if step_id not in {sibling.step_id for sibling in siblings}:
            siblings.append(known)


def _keys(messages: Sequence[Message], form: Any) -> Key:
    return tuple(json.dumps(form(message)) for message in messages)


def _lenient(message: Message) -> Any:
    calls = [
        [bare(call["id"]), call["function"]["name"], _canonical(call["function"]["arguments"])]
        for call in message.get("tool_calls", ())
    ]
    return [message["role"], message["content"].rstrip(), calls, bare(message.get("tool_call_id", ""))]


def _exact(message: Message) -> Any:
    return message


def _canonical(arguments: Any) -> str:
    return json.dumps(arguments, sort_keys=True)

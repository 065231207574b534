"""Messages of a conversation in one canonical form, before matching and before rendering. Pure functions.

`None`, `""` and absent content are one value; tool-call arguments are objects where they parse; `developer`
is `system` and leading system messages are one, without the lines that `client_lines.py` names; parallel tool
results stand in the order of their calls.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from sidecar.tito.client_lines import count_client_lines, strip_client_lines
from sidecar.tito.errors import MessageError

ROLES = ("system", "user", "assistant", "tool")
_PUNCTUATION = re.compile(r"[^0-9A-Za-z]")


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `arguments` is the raw JSON text, `parsed` its object or None if it is not one."""

    id: str
    name: str
    arguments: str
    parsed: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `content` is never None, `reasoning` is None if the client sent none."""

    role: str
    content: str = ""
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    name: str | None = None

    def for_template(self, *, arguments_as_text: bool = False) -> dict[str, Any]:
        """The dict a chat template reads. Some templates crash on argument strings, others on objects."""
        rendered: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            rendered["reasoning_content"] = self.reasoning
        if self.calls:
            rendered["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": call.arguments if arguments_as_text or call.parsed is None else call.parsed,
                    },
                }
                for call in self.calls
            ]
        if self.call_id is not None:
            rendered["tool_call_id"] = self.call_id
        if self.name is not None:
            rendered["name"] = self.name
        return rendered

    def to_json(self) -> bytes:
        """OpenAI's message form, for the store."""
        data = orjson.dumps(self.for_template(arguments_as_text=True))
        return bytes(
            memoryview(data)
        )  # a copy: what orjson 3.13 gives keeps its whole buffer, 8 KB for 1 KB of text

    @classmethod
    def from_json(cls, data: bytes) -> Message:
        """Inverse of `to_json`."""
        return from_wire(orjson.loads(data), "stored message")


def parse_arguments(text: str) -> dict[str, Any] | None:
    """A call's arguments as an object, or None if they are no JSON object or mean different things to
    different readers (duplicate keys, NaN, infinities, lone surrogates). Empty text is the empty object."""
    if not text.strip():
        return {}
    try:
        parsed = json.loads(
            text, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant, parse_float=_finite
        )
        if "\\u" in text:
            json.dumps(parsed, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("duplicate key")
    return unique


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond what a float holds")
    return value


def bare_id(call_id: str) -> str:
    """A call id without punctuation: some clients rewrite `call_1` as `call-1` or `call1`."""
    return _PUNCTUATION.sub("", call_id)


def from_wire(message: dict[str, Any], where: str) -> Message:
    """One message of the wire, already checked for types by `adapters.protocols`.

    Raises `MessageError` with a `param` below `where` (`messages[3]`)."""
    role = message["role"]
    if role in ("developer", "system"):
        role = "system"
    elif role not in ROLES:
        known = ", ".join((*ROLES, "developer"))
        raise MessageError(f"{where}.role is {role!r}; known roles are {known}", f"{where}.role")
    calls = tuple(
        Call(
            id=call.get("id") or "",
            name=call["function"]["name"],
            arguments=call["function"].get("arguments") or "",
            parsed=parse_arguments(call["function"].get("arguments") or ""),
        )
        for call in message.get("tool_calls") or ()
    )
    return Message(
        role=role,
        content=_text(message.get("content"), where, role),
        reasoning=message.get("reasoning_content") or message.get("reasoning") or None,
        calls=calls,
        call_id=message.get("tool_call_id") or None,
        name=message.get("name"),
    )


def _text(content: Any, where: str, role: str) -> str:
    """A content's blocks (the text as a whole, or the parts of a list) as one text."""
    if isinstance(content, str) and role != "system":
        return content
    texts = _blocks(content, where)
    return "".join([strip_client_lines(text)[0] for text in texts] if role == "system" else texts)


def _blocks(content: Any, where: str) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    texts = []
    for position, part in enumerate(content):
        if part.get("type") not in ("text", "input_text", "output_text"):
            raise MessageError(
                f"{where}.content[{position}].type is {part.get('type')!r}; only text parts are supported",
                f"{where}.content[{position}].type",
            )
        texts.append(part["text"])
    return texts


def normalise(wire: Sequence[dict[str, Any]]) -> list[Message]:
    """All messages of a request in canonical form and order.

    Raises `MessageError` for unknown roles, tool results without their call, and parts that are no text."""
    messages = normalise_following(wire, 0)
    if not messages:
        raise MessageError("messages hold nothing but a client's billing header; send a user message", "messages")
    return _fold_leading_system(messages)


def normalise_following(wire: Sequence[dict[str, Any]], first: int) -> list[Message]:
    """The messages from `messages[first]` on, which `wire` holds; none of them is a result of a call before them.

    Raises `MessageError` as `normalise` does."""
    messages = _order_tool_results(
        [from_wire(message, f"messages[{index}]") for index, message in enumerate(wire, first)], first
    )
    if any(message.role == "system" and not message.content for message in messages):
        return [message for message, sent in zip(messages, wire, strict=True) if not _emptied(message, sent)]
    return messages


def _emptied(message: Message, sent: dict[str, Any]) -> bool:
    """A system message of which `client_lines.py` leaves nothing: one that says nothing was never meant."""
    return message.role == "system" and not message.content and bool(count_client_lines([sent]))


def _fold_leading_system(messages: list[Message]) -> list[Message]:
    count = 0
    while count < len(messages) and messages[count].role == "system":
        count += 1
    if count < 2:
        return messages
    text = "\n\n".join(message.content for message in messages[:count])
    return [replace(messages[0], content=text), *messages[count:]]


def _order_tool_results(messages: list[Message], first: int) -> list[Message]:
    ordered: list[Message] = []
    index = 0
    while index < len(messages):
        if messages[index].role != "tool":
            ordered.append(messages[index])
            index += 1
            continue
        end = index
        while end < len(messages) and messages[end].role == "tool":
            end += 1
        calls = ordered[-1].calls if ordered else ()
        if not calls:
            raise MessageError(
                f"messages[{first + index}] is a tool result, but the message before it calls no tool; "
                "send the assistant message with its tool_calls first",
                f"messages[{first + index}].role",
            )
        ordered.extend(_in_call_order(messages[index:end], calls, first + index))
        index = end
    return ordered


def _in_call_order(results: list[Message], calls: tuple[Call, ...], first: int) -> list[Message]:
    """Parallel results may come in any order; templates bind them by position."""
    without_id = [result for result in results if not result.call_id]
    if without_id:
        if len(without_id) == len(results) == len(calls):
            return results
        raise MessageError(
            f"messages[{first}]: {len(results)} tool results for {len(calls)} calls, "
            f"{len(without_id)} of them without tool_call_id; give each result the id of its call",
            f"messages[{first}].tool_call_id",
        )
    spelled = {call.id for call in calls}
    # Without punctuation only if a client rewrote the ids: `f:11` and `f1:1` would be one.
    as_sent = all(result.call_id in spelled for result in results)
    known = [call.id if as_sent else bare_id(call.id) for call in calls]
    wanted = [result.call_id or "" if as_sent else bare_id(result.call_id or "") for result in results]
    for offset, result in enumerate(results):
        if wanted[offset] not in known:
            ids = ", ".join(repr(call.id) for call in calls)
            raise MessageError(
                f"messages[{first + offset}].tool_call_id is {result.call_id!r}; "
                f"the calls before it have the ids {ids}",
                f"messages[{first + offset}].tool_call_id",
            )
    if len(set(known)) != len(known):
        return results  # duplicate call ids: position is all there is
    by_call = sorted(zip(wanted, results, strict=True), key=lambda pair: known.index(pair[0]))
    return [result for _, result in by_call]

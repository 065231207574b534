"""Types of wire messages in OpenAI's form, the form in which every protocol hands them on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adapters.protocols.errors import bad_field


def check_messages(messages: Sequence[Any], first: int = 0) -> None:
    """Check the types of a request's messages from `messages[first]` on. Raises `RequestError` (400) that names
    field, value and remedy."""
    for index, message in enumerate(messages, first):
        check_message(message, f"messages[{index}]")


def check_message(message: Any, where: str) -> None:
    """Check the types of one message's fields. Raises `RequestError` (400) below `where`."""
    if not isinstance(message, dict):
        raise bad_field(where, message, "send an object with role and content")
    if not isinstance(message.get("role"), str):
        raise bad_field(f"{where}.role", message.get("role"), "send system, user, assistant or tool")
    content = message.get("content")
    if isinstance(content, list):
        for position, part in enumerate(content):
            _check_part(part, f"{where}.content[{position}]")
    elif content is not None and not isinstance(content, str):
        raise bad_field(f"{where}.content", content, "send a string or a list of text parts")
    for name in ("tool_call_id", "name", "reasoning_content", "reasoning"):
        if message.get(name) is not None and not isinstance(message[name], str):
            raise bad_field(f"{where}.{name}", message[name], "send a string")
    _check_calls(message.get("tool_calls"), where)


def _check_part(part: Any, where: str) -> None:
    if not isinstance(part, dict):
        raise bad_field(where, part, "send an object with type and text")
    if part.get("type") not in ("text", "input_text", "output_text"):
        raise bad_field(f"{where}.type", part.get("type"), "only text parts are supported")
    if not isinstance(part.get("text"), str):
        raise bad_field(f"{where}.text", part.get("text"), "send a string")


def _check_calls(calls: Any, where: str) -> None:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise bad_field(f"{where}.tool_calls", calls, "send a list of calls")
    for position, call in enumerate(calls):
        at = f"{where}.tool_calls[{position}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_field(f"{at}.function", function, "send an object with name and arguments")
        if not isinstance(function.get("arguments", ""), str):
            raise bad_field(f"{at}.function.arguments", function["arguments"], "send JSON text")
        if call.get("id") is not None and not isinstance(call["id"], str):
            raise bad_field(f"{at}.id", call["id"], "send a string")

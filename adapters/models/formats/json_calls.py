"""Calls whose arguments, or which as a whole, are written as JSON. Pure functions.

NaN, infinities and lone surrogates make no call: agents could not read its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from adapters.models.formats.base import Call
from adapters.models.formats.cursor import Malformed


def decode(text: str) -> Any:
    """The JSON value `text` is. Raises `Malformed`."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Malformed from error


def call(name: str, arguments: Mapping[str, Any], own_id: str | None = None) -> Call:
    """A call with its arguments as JSON text. Raises `Malformed` if there is no such text."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + text).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Malformed from error
    if not name:
        raise Malformed
    return Call(name, text, own_id)


def call_with(name: str, arguments: str, own_id: str | None = None) -> Call:
    """A call whose arguments are JSON text. Raises `Malformed` if that is no object."""
    decoded = decode(arguments)
    if not isinstance(decoded, dict):
        raise Malformed
    return call(name, decoded, own_id)


def calls_of(text: str, *, with_ids: bool = False) -> list[Call]:
    """One `{"name": ..., "arguments": {...}}` or a list of them. `parameters` is another word for `arguments` and
    counts first, unless it is empty (SGLang 0.5.23); neither means none. Raises `Malformed`."""
    decoded = decode(text)
    found = [_call_of(entry, with_ids) for entry in (decoded if isinstance(decoded, list) else [decoded])]
    if not found:
        raise Malformed
    return found


def _call_of(entry: Any, with_ids: bool) -> Call:
    if not isinstance(entry, dict):
        raise Malformed
    name, arguments = entry.get("name"), entry.get("parameters") or entry.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Malformed
    own_id = entry.get("id") if with_ids else None
    return call(name, arguments, own_id if isinstance(own_id, str) and own_id else None)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)

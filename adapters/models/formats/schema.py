"""What a tool's JSON schema says of an argument that the model wrote as bare text. Pure; read-only.

Formats such as Qwen3-Coder's write `02134` for a string and for a number alike; only the schema tells them apart.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

_DEEPEST = 16
"""References and alternatives nested deeper than this are not followed: a schema may refer to itself."""
_NAMES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_NUMERIC = frozenset({"integer", "number"})


class Tools:
    """The tools of one request, as the Chat Completions API has them."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._parameters = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def kinds(self, name: str, key: str) -> frozenset[str]:
        """JSON types that the schema allows for argument `key` of tool `name`; empty if it does not say."""
        root = self._parameters.get(name)
        return _kinds(_property(root, key, root, 0), root, 0)


def typed(text: str, kinds: frozenset[str], *, loose: bool) -> Any:
    """The value that `text` stands for.

    A string is verbatim. Where null is allowed, or no string is, `null` and `None` are null. Other values are JSON,
    Python's `True` and `False`, a number in Python's spelling if the schema wants one, or a Python list or dict;
    what is none of these stays text. Arguments of no known type are read like that if `loose`, else stay text."""
    word = text.strip()
    if "string" in kinds:
        return None if "null" in kinds and word in ("null", "None") else text
    if not kinds and not loose:
        return text
    if word in _WORDS:
        return _WORDS[word]
    for read in (_number, _json, _literal) if kinds & _NUMERIC else (_json, _literal):
        try:
            value = read(word)
            json.dumps(value, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        return value
    return text


def json_or_text(text: str) -> Any:
    """The JSON value `text` is, else `text`; NaN and infinities are text."""
    try:
        value = _json(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def _number(word: str) -> int | float:
    try:
        return int(word)
    except ValueError:
        return float(word)


def _json(word: str) -> Any:
    return json.loads(word)


def _literal(word: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes in the model's text
        return ast.literal_eval(word)


def _property(schema: Any, key: str, root: Any, depth: int) -> Any:
    """The schema of property `key`, also where it stands in an alternative."""
    schema = _resolved(schema, root, depth)
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return None
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return properties[key]
    for branch in _branches(schema):
        found = _property(branch, key, root, depth + 1)
        if found is not None:
            return found
    return None


def _kinds(schema: Any, root: Any, depth: int) -> frozenset[str]:
    schema = _resolved(schema, root, depth)
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return frozenset()
    nullable = frozenset({"null"}) if schema.get("nullable") is True else frozenset()
    kind = schema.get("type")
    if isinstance(kind, str):
        return nullable | {kind}
    if isinstance(kind, list):
        return nullable.union(name for name in kind if isinstance(name, str))
    if isinstance(schema.get("enum"), list):
        return nullable.union(map(_kind_of, schema["enum"]))
    if "const" in schema:
        return nullable | {_kind_of(schema["const"])}
    branches = [_kinds(branch, root, depth + 1) for branch in _branches(schema)]
    if not all(branches) and "allOf" not in schema:
        return frozenset()  # an alternative that allows anything
    return nullable.union(*branches) if any(branches) else frozenset()


def _branches(schema: Mapping[str, Any]) -> list[Any]:
    return [
        branch
        for word in ("anyOf", "oneOf", "allOf")
        if isinstance(schema.get(word), list)
        for branch in schema[word]
    ]


def _resolved(schema: Any, root: Any, depth: int) -> Any:
    """`schema`, or what its local `$ref` points to."""
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if not isinstance(reference, str):
        return schema
    if not reference.startswith("#/") or depth > _DEEPEST:
        return None
    target = root
    for part in reference[2:].split("/"):
        target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
    return _resolved(target, root, depth + 1)


def _kind_of(value: Any) -> str:
    return next((name for name, kind in _NAMES.items() if isinstance(value, kind)), "number")

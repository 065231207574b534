"""Reading fields of a JSON body with errors that name field, value and remedy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.protocols.errors import bad_field


def number(body: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """A number in [low, high], or None if absent or null."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad_field(name, value, f"send a number from {low:g} to {high:g}")
    return float(value)


def integer(body: Mapping[str, Any], name: str, low: int, high: int = 2**63 - 1) -> int | None:
    """A whole number in [low, high], or None if absent or null."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        upper = "" if high == 2**63 - 1 else f" and at most {high}"
        raise bad_field(name, value, f"send a whole number of at least {low}{upper}")
    return value


def boolean(body: Mapping[str, Any], name: str, default: bool) -> bool:
    """true or false, or the default if absent or null."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad_field(name, value, "send true or false")
    return value


def mapping(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object; empty if absent or null."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_field(name, value, "send an object")
    return value


def text(body: Mapping[str, Any], name: str) -> str | None:
    """A string, or None if absent or null."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise bad_field(name, value, "send a string")
    if value is not None and "\0" in value:
        raise bad_field(name, value, "leave the NUL character out: no database keeps it in a text")
    return value

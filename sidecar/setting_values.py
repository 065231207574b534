"""How settings are written as text: lists, pairs and sizes of flags and of the environment, as their values.

A YAML file may have the value itself, which passes unchanged. Pure functions and types.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_settings import NoDecode

from adapters.models.templates import template_file

_TIMES = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def split_words(value: Any) -> Any:
    """Words between commas or line ends."""
    return [part.strip() for part in re.split("[,\n]", value) if part.strip()] if isinstance(value, str) else value


def name_value_pairs(value: Any) -> Any:
    """`temperature=1.0,top_p=1.0` as a dict."""
    if not isinstance(value, str):
        return value
    pairs: dict[str, Any] = {}
    for part in split_words(value):
        name, equals, text = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is no name=value")
        try:
            pairs[name.strip()] = int(text) if re.fullmatch(r"[+-]?\d+", text.strip()) else float(text)
        except ValueError:
            raise ValueError(f"{name.strip()} is {text!r}; send a number") from None
    return pairs


def size_in_bytes(value: Any) -> Any:
    """`8MiB` in bytes."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", value.strip())
    if match is None or match.group(2).lower() not in _SIZES:
        raise ValueError(f"{value!r} is no size; write bytes, or 512KiB, 8MiB, 1GiB")
    return int(match.group(1)) * _SIZES[match.group(2).lower()]


def duration_in_seconds(value: Any) -> Any:
    """`24h` in seconds; a number is seconds already."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", value.strip())
    if match is None:
        raise ValueError(f"{value!r} is no time; write seconds, or 90s, 15m, 24h, 7d")
    return float(match.group(1)) * _TIMES[match.group(2) or "s"]


def duration_or_off(value: Any) -> Any:
    """Like `duration_in_seconds`; `off`, which YAML reads as false, is None."""
    return None if value is False or value == "off" else duration_in_seconds(value)


def duration_as_text(seconds: float) -> str:
    """Seconds as they would be written: `24h`."""
    unit = next((unit for unit in "dhm" if seconds >= _TIMES[unit] and seconds % _TIMES[unit] == 0), "s")
    return f"{seconds / _TIMES[unit]:g}{unit}"


def whole_number(value: Any) -> Any:
    """`413` as a number: flags and the environment are text, and a choice of numbers takes no text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def on_or_off(value: Any) -> Any:
    """YAML reads `on` and `off` as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def template_of_ours(value: Any) -> Any:
    """The name of a template of our own as its file."""
    ours = template_file(value) if isinstance(value, str) else None
    return value if ours is None else ours


def split_lines(value: Any) -> Any:
    """One pattern per line: a comma may be part of one."""
    return value.splitlines() if isinstance(value, str) else value


Words = Annotated[list[str], NoDecode, BeforeValidator(split_words)]
Patterns = Annotated[list[str], NoDecode, BeforeValidator(split_lines)]
Size = Annotated[int, BeforeValidator(size_in_bytes)]
Duration = Annotated[float, BeforeValidator(duration_in_seconds)]
DurationOrOff = Annotated[float | None, BeforeValidator(duration_or_off)]

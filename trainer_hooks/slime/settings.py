"""Settings of the hooks, and reading slime's `args` without depending on slime.

A setting comes from its `TITO_*` variable, else from the key of the same name in lower case that
`--custom-config-path` put on `args`, else from the default. Never from a new flag: slime ignores
flags it does not know. Functions without state; safe from any thread.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from trainer_hooks.slime.errors import SettingError

_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def arg(args: Any, name: str, default: Any = None) -> Any:
    """`args.<name>`, or `default` where `args` is None, lacks the attribute or holds None."""
    value = getattr(args, name, None)
    return default if value is None else value


def choice_setting(args: Any, name: str, choices: Sequence[str], default: str) -> str:
    """The setting `name` (spelled as its `TITO_*` variable), one of `choices`. Raises `SettingError`."""
    value = os.environ.get(name) or arg(args, name.lower(), default)
    if value not in choices:
        raise SettingError(f"{name} is {value!r}: set it to one of {', '.join(choices)}")
    return str(value)


def text_setting(args: Any, name: str, default: str | None = None) -> str | None:
    """The setting `name` as text, or `default` where it is unset or empty. Raises `SettingError`."""
    value = os.environ.get(name) or arg(args, name.lower())
    if value is None or value == "":
        return default
    if isinstance(value, (list, dict)):
        raise SettingError(f"{name} is {value!r}: it must be text")
    return str(value)


def list_setting(args: Any, name: str, default: Sequence[str] = ()) -> list[str]:
    """The setting `name` as a list: a comma list in the variable, a comma list or a list in YAML."""
    value = os.environ.get(name) or arg(args, name.lower())
    if value is None or value == "":
        return list(default)
    parts = value if isinstance(value, (list, tuple)) else str(value).split(",")
    return [str(part).strip() for part in parts if str(part).strip()]


def number_setting(
    args: Any, name: str, default: float, *, least: float = 0.0, most: float = math.inf, whole: bool = False
) -> float:
    """The setting `name` as a finite number within [least, most]. Raises `SettingError`."""
    value = os.environ.get(name) or arg(args, name.lower(), default)
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not math.isfinite(number) or not least <= number <= most or (whole and number != int(number)):
        kind = "a whole number" if whole else "a number"
        bounds = f"of at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise SettingError(f"{name} is {value!r}: it must be {kind} {bounds}")
    return number


def flag_setting(args: Any, name: str, default: bool) -> bool:
    """The setting `name`: 1, true, yes, on or 0, false, no, off. Raises `SettingError`."""
    value = os.environ.get(name) or arg(args, name.lower(), default)
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise SettingError(f"{name} is {value!r}: set it to 1 or 0")
    return _WORDS[word]


def token_cap(args: Any) -> int | None:
    """Most tokens that a training sample may have, or None without a cap.

    `max_tokens_per_gpu * (context_parallel_size or cp_size or 1)`: a micro-batch of slime's dynamic
    batching holds that many tokens, and a longer sample sits alone in one and may run out of memory.
    """
    per_gpu = arg(args, "max_tokens_per_gpu")
    if per_gpu is None:
        return None
    if per_gpu < 1:
        raise SettingError(f"max_tokens_per_gpu is {per_gpu!r}: it must be a positive number of tokens")
    return int(per_gpu) * int(arg(args, "context_parallel_size") or arg(args, "cp_size") or 1)

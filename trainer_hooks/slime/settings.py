"""Settings of the hooks, and reading slime's `args` without depending on slime.

A setting comes from its `TITO_*` variable, else from the key of the same name in lower case that
`--custom-config-path` put on `args`, else from the default. Never from a new flag: slime ignores
flags it does not know. Functions without state; safe from any thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from trainer_hooks.slime.errors import SettingError


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

"""Names of slime (and ray), looked up when they are used: the hooks import without either. No shared state."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from trainer_hooks.slime.errors import SettingError


def slime_name(path: str) -> Any:
    """The attribute `package.module.name`. Raises `RuntimeError` outside slime's environment."""
    module_name, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"{path} cannot be imported ({error}); run inside slime's environment (0.3.1, with its checkout on "
            "PYTHONPATH)"
        ) from error


def load_path(path: str, setting: str) -> Callable[..., Any]:
    """The function that a user named as `package.module.name` in `setting`. Raises `SettingError`."""
    module_name, _, name = path.rpartition(".")
    try:
        loaded = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(f"{setting} is {path!r}, which cannot be imported: {error}") from error
    if not callable(loaded):
        raise SettingError(f"{setting} is {path!r}, which is a {type(loaded).__name__}; name a function")
    return loaded  # type: ignore[no-any-return]

"""Finding slime and importing it without sglang and without GPUs.

slime's rollout manager imports three modules of sglang for names that conversion never uses; they are replaced
by modules that hold those names and nothing else.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_SGLANG: dict[str, dict[str, Any]] = {
    "sglang": {},
    "sglang.srt": {},
    "sglang.srt.constants": {
        "GPU_MEMORY_TYPE_CUDA_GRAPH": "cuda_graph",
        "GPU_MEMORY_TYPE_KV_CACHE": "kv_cache",
        "GPU_MEMORY_TYPE_WEIGHTS": "weights",
    },
    "sglang.srt.server_args": {"ServerArgs": object},
    "sglang.srt.utils": {"kill_process_tree": None},
}


def slime_path() -> Path:
    """The checkout that `SLIME_PATH` names; skips the module where there is none."""
    named = os.environ.get("SLIME_PATH")
    if not named:
        pytest.skip(
            "SLIME_PATH is not set: name a checkout of slime to run the hooks against it", allow_module_level=True
        )
    path = Path(named).resolve()
    if not (path / "slime" / "ray" / "rollout.py").is_file():
        pytest.fail(f"SLIME_PATH is {named!r}, which holds no slime/ray/rollout.py", pytrace=False)
    return path


def slime_module(name: str) -> Any:
    """A module of that checkout; skips the importing test module where something it needs is not installed."""
    path = slime_path()
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))
    for stub, names in _SGLANG.items():
        if stub not in sys.modules:
            module = ModuleType(stub)
            module.__path__ = []  # type: ignore[attr-defined]
            vars(module).update(names)
            sys.modules[stub] = module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("slime"):
            raise
        pytest.skip(f"{name} needs {error.name}, which is not installed", allow_module_level=True)

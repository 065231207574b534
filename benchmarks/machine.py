"""Which machine and versions a figure belongs to. Pure but for looking at this machine."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def describe_machine() -> str:
    """Date, processors, memory, and versions of what costs the most."""
    names = ("tito-sidecar", "tokenizers", "transformers", "orjson", "aiohttp", "uvicorn", "starlette")
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {len(os.sched_getaffinity(0))} cores of {model}, {memory:.0f} GiB, "
        f"load {load:.1f}, Python {platform.python_version()}, {versions}"
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []

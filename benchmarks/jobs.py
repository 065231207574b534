"""A process with a plan and a result, both files of JSON. Promise: it has ended when its block ends. One caller."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from benchmarks.processes import ROOT

_END_SECONDS = 600
_numbers = itertools.count()


class Job:
    """`python -m module PLAN RESULT`, run beside its caller."""

    def __init__(self, module: str, plan: dict[str, Any], scratch: Path) -> None:
        self._module = module
        self._plan = plan
        name = f"{module.rpartition('.')[2]}-{next(_numbers)}"
        self._files = [scratch / f"{name}.{kind}" for kind in ("plan", "result", "log")]
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        """Start it."""
        plan, result, log = self._files
        plan.write_bytes(orjson.dumps(self._plan))
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, plan, result],
                cwd=ROOT, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End it, if it has not ended by itself."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    @property
    def ended(self) -> bool:
        """It has ended, with or without a result."""
        return self._process.poll() is not None

    def result(self, seconds: float = _END_SECONDS) -> dict[str, Any]:
        """Wait for its end; what it found. Raises `RuntimeError` with the end of its log if it failed."""
        _, result, log = self._files
        status = self._process.wait(seconds)
        if status or not result.exists():
            raise RuntimeError(f"{self._module} failed:\n{log.read_text(errors='replace')[-2000:]}")
        found: dict[str, Any] = orjson.loads(result.read_bytes())
        return found

"""What only the process itself can tell: how long its event loop did nothing else, and how long collections take.

A task that wants to run every five milliseconds writes down how late it was, and how much of that time this process
computed: on a busy machine the rest was spent by others. SIGUSR1 asks for one full collection. Lines of JSON go to
a file; times are `time.monotonic`, which all processes of a machine share. Used by the launchers of the sidecar and
of the pass-through alike, so that both are watched at the same cost.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import orjson

_EVERY = 0.005
_REPORT_FROM = 0.01
_FULL = 2


class LoopWatch:
    """Watches the running loop while `run` runs."""

    def __init__(self, path: Path) -> None:
        self._file: FileIO = path.open("ab", buffering=0)
        self._collecting = 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._collect)
        gc.callbacks.append(self._on_collection)
        self._write({"kind": "start"})
        try:
            while True:
                due, cpu, own = time.monotonic() + _EVERY, time.process_time(), time.thread_time()
                await asyncio.sleep(_EVERY)
                late = time.monotonic() - due
                if late > _REPORT_FROM:
                    self._write(
                        {
                            "kind": "stall",
                            "ms": late * 1e3,
                            "cpu_ms": (time.process_time() - cpu) * 1e3,
                            "loop_cpu_ms": (time.thread_time() - own) * 1e3,
                        }
                    )
        finally:
            gc.callbacks.remove(self._on_collection)
            self._file.close()

    def _collect(self) -> None:
        gc.unfreeze()
        tracked = len(gc.get_objects())
        before, cpu = time.monotonic(), time.thread_time()
        gc.collect()
        took, cpu = time.monotonic() - before, time.thread_time() - cpu
        gc.freeze()
        self._write({"kind": "asked", "ms": took * 1e3, "cpu_ms": cpu * 1e3, "tracked": tracked})

    def _on_collection(self, phase: str, details: Mapping[str, int]) -> None:
        if details["generation"] < _FULL:
            return
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._write({"kind": "collection", "cpu_ms": (time.thread_time() - self._collecting) * 1e3})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(orjson.dumps({"at": time.monotonic(), **line}) + b"\n")


@dataclass(frozen=True, slots=True)
class Stalls:
    """Of a span of time, in milliseconds. `own_ms`: the worst stall, counted as no longer than the process computed
    in it, threads that encode prompts included; what is beyond that is other processes' doing. `loop_ms`: the most
    that the loop's own thread computed in one. `over_50`: how many stalls took longer than 50 ms."""

    worst_ms: float
    own_ms: float
    loop_ms: float
    over_50: int
    collections_ms: list[float]


def watched(path: Path, begin: float, end: float) -> Stalls:
    """What was written down between two times."""
    lines = [line for line in _lines(path) if begin <= line["at"] <= end]
    stalls = [line for line in lines if line["kind"] == "stall"]
    return Stalls(
        worst_ms=max((line["ms"] for line in stalls), default=0.0),
        own_ms=max((min(line["ms"], line["cpu_ms"]) for line in stalls), default=0.0),
        loop_ms=max((line["loop_cpu_ms"] for line in stalls), default=0.0),
        over_50=sum(line["ms"] > 50 for line in stalls),
        collections_ms=[line["cpu_ms"] for line in lines if line["kind"] == "collection"],
    )


def stall_lines(path: Path) -> list[dict[str, Any]]:
    """All that was written down, oldest first."""
    return list(_lines(path))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(orjson.loads, path.read_bytes().splitlines())


@contextmanager
def watching(path: Path) -> Iterator[None]:
    """Watch the running loop for the length of the block."""
    task = asyncio.get_running_loop().create_task(LoopWatch(path).run())
    try:
        yield
    finally:
        task.cancel()

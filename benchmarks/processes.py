"""Servers as processes of their own, and what they cost: CPU in nanoseconds and resident memory.

Promise: a server that `serving` started has ended when its block ends. Concurrency: one caller.
"""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_START_SECONDS = 120
_STOP_SECONDS = 30


def free_port() -> int:
    """A loopback port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class Server:
    """A running process. `cpu_ns` counts user and system time of all its threads, ended ones too."""

    process: subprocess.Popen[bytes]
    clock: int
    url: str

    def cpu_ns(self) -> int:
        """CPU time so far."""
        return time.clock_gettime_ns(self.clock)

    def resident_bytes(self) -> int:
        """Resident set size."""
        return resident_bytes(self.process.pid)


def resident_bytes(pid: int | None = None) -> int:
    """Resident set size of a process, or of this one (Linux)."""
    status = Path(f"/proc/{pid or 'self'}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@contextmanager
def serving(module: str, arguments: Sequence[str], port: int, log: Path, path: str = "/") -> Iterator[Server]:
    """Run `python -m module arguments` until the block ends; it is up when `path` answers on `port`.

    Raises `RuntimeError` with the end of its log if it does not come up."""
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _wait_until_up(process, f"{url}{path}", log)
        yield Server(process, _cpu_clock(process.pid), url)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_up(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"{url} did not come up:\n{log.read_text(errors='replace')[-2000:]}")


def _cpu_clock(pid: int) -> int:
    """The POSIX clock of another process's CPU time: nanoseconds, where `/proc` counts hundredths of a second."""
    clock = ctypes.c_int()
    failed = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if failed:
        raise OSError(failed, f"no CPU clock of process {pid}")
    return clock.value

"""The process has one heap: counted by the C library itself."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, sys, threading
from sidecar.heap import share_one_heap
if sys.argv[1] == "shared":
    assert share_one_heap()
begin = threading.Barrier(4)
def allocate():
    begin.wait()
    kept = [bytes(2000) for _ in range(5000)]
    begin.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
ctypes.CDLL(None).malloc_stats()
"""


def _heaps(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return sum(line.startswith("Arena ") for line in done.stderr.splitlines())


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not the GNU C library")
def test_threads_allocate_from_one_heap_and_from_several_without_it() -> None:
    assert _heaps("shared") == 1
    assert _heaps("as usual") > 1

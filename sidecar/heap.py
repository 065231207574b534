"""One heap for all threads of the process. Call once, before any thread begins.

The GNU C library gives each thread a heap of its own. Here threads come and go with renderings, commits and engine
calls. What outlives them is small and scattered, and nobody else can use the rest of such a heap: sessions hold 25
bytes per token instead of 10 (`benchmarks/README.md`). Python code runs in one thread at a time anyway.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8
"""`mallopt`'s parameter in glibc's malloc.h."""


def share_one_heap() -> bool:
    """False where the C library has no such setting (macOS, musl): there is nothing to set."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(mallopt is not None and mallopt(_M_ARENA_MAX, 1) == 1)

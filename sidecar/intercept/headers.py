"""Names of the headers that the interceptor and the gateway share, and the rule that agents cannot send them.

Promise: after ``without_reserved`` no header of the ``x-tito-`` family that an agent wrote is left, so a
gateway that sees a right ``x-tito-intercept-secret`` knows that the interceptor wrote all of them.
Concurrency: pure functions.
"""

from collections.abc import Iterable

RESERVED_PREFIX = b"x-tito-"
"""Header names that start with this (any case) belong to the sidecar; agents cannot set them."""

SECRET_HEADER = "x-tito-intercept-secret"
"""Carries the per-boot secret that proves a request came through the interceptor."""

ORIGINAL_HOST_HEADER = "x-tito-original-host"
"""Where the agent meant the call to go, as ``original_host`` writes it."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


def without_reserved(fields: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header fields, in order, without those of the ``x-tito-`` family."""
    return tuple((name, value) for name, value in fields if not name.lower().startswith(RESERVED_PREFIX))


def original_host(scheme: str, host: str, port: int) -> str:
    """Return ``host``, or ``host:port`` where the port is not the scheme's own; IPv6 hosts in brackets."""
    shown = f"[{host}]" if ":" in host else host
    return shown if _DEFAULT_PORTS.get(scheme) == port else f"{shown}:{port}"

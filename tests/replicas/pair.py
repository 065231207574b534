"""Two sidecars on one store, in the test's own event loop, and what is the same for both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fake_sglang import FakeSGLang
from tests.support.running import Running, running_sidecar

SHARED = {"session_secret": "secret-of-these-tests", "control_token": "token-of-these-tests"}
LEASE = 1.5
"""Seconds; short, so that a take-over is."""


def shared_settings(store: str, **changes: Any) -> dict[str, Any]:
    """Settings that are the same for all replicas of `store`."""
    return {**SHARED, "store": store, "lease_seconds": LEASE, **changes}


@asynccontextmanager
async def replica(engine: FakeSGLang, state_dir: Path, store: str, **changes: Any) -> AsyncIterator[Running]:
    """One more replica, with a state directory of its own."""
    async with running_sidecar(engine, state_dir, **shared_settings(store, **changes)) as running:
        yield running


@dataclass
class Pair:
    """Two replicas and their engine."""

    replicas: tuple[Running, Running]
    engine: FakeSGLang


@asynccontextmanager
async def pair(
    engine: FakeSGLang, state: Path, store: str, **changes: Any
) -> AsyncIterator[tuple[Running, Running]]:
    """Two replicas."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(replica(engine, state / "a", store, **changes))
        second = await stack.enter_async_context(replica(engine, state / "b", store, **changes))
        yield first, second

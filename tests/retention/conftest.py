"""A sidecar whose clocks a test moves, and sweeps when it is asked to."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from sidecar.sessions.retention import Retention, RetentionRules
from sidecar.store.protocol import Store
from tests.support.running import Running
from tests.support.waiting import until


@dataclass
class Sweeper:
    """`ahead`: how far its clocks are ahead of the machine's, in seconds."""

    running: Running
    ahead: float = 0.0
    rules: dict[str, Any] = field(
        default_factory=lambda: {"retention": 86400.0, "session_timeout": 3600.0, "tombstones": 7 * 86400.0}
    )

    def __post_init__(self) -> None:
        self.registry = self.running.sidecar.registry
        self.registry._sessions._clock = lambda: time.monotonic() + self.ahead
        self.retention = Retention(
            self.store,
            self.registry,
            RetentionRules(**self.rules),
            self.running.sidecar.retention._sidecar_id,
            clock=lambda: time.time() + self.ahead,
        )

    @property
    def store(self) -> Store:
        """The sidecar's."""
        return self.running.sidecar._store

    @property
    def loaded(self) -> list[str]:
        """Sessions in memory."""
        return list(self.registry._sessions._loaded)

    async def pass_time(self, hours: float) -> None:
        """Let time pass, then sweep."""
        self.ahead += hours * 3600
        await self.retention.sweep()


@pytest.fixture
async def sweeper(sidecar: Running) -> Sweeper:
    return Sweeper(sidecar)


async def at_rest(running: Running, session_id: str) -> None:
    """Until the reply that the test has read is over for the sidecar, too."""
    sessions = running.sidecar.registry._sessions
    await until(lambda: session_id not in sessions or sessions[session_id].idle, "an end of the reply")

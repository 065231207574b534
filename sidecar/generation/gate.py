"""Pauses, and the gate that is closed while there is one. One event loop; no I/O (the store is told by others).

A pause is a lease: unless renewed it ends by itself, so that a trainer that died cannot stop the agents for good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sidecar.generation.signal import Signal


class PauseConflict(Exception):  # noqa: N818 - the caller's situation
    """Another pause of the same scope is in force in another mode."""


class PauseExpired(Exception):  # noqa: N818 - the caller's situation
    """No such pause: it was lifted, it ran out, or it never was."""


@dataclass(frozen=True, slots=True)
class Pause:
    """`lease_expires_at` is in Unix seconds."""

    pause_id: str
    scope: str
    mode: str
    reason: str | None
    lease_expires_at: float


class Gate:
    """Open while no pause is in force."""

    def __init__(self, on_expiry: Callable[[Pause], None]) -> None:
        """`on_expiry` is called for each pause that ends because nobody renewed it."""
        self._on_expiry = on_expiry
        self._pauses: dict[str, Pause] = {}
        self._changed = Signal()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.suspended = 0
        """Calls held at the gate."""

    @property
    def open(self) -> bool:
        """No pause is in force."""
        return not self._pauses

    @property
    def pauses(self) -> list[Pause]:
        """The pauses in force, oldest first."""
        return list(self._pauses.values())

    async def wait_open(self) -> None:
        """Return when the gate is open; at once if it is."""
        if self.open:
            return
        self.suspended += 1
        try:
            while not self.open:
                await self._changed.wait()
        finally:
            self.suspended -= 1

    def find(self, scope: str) -> Pause | None:
        """The pause in force for a scope."""
        return next((pause for pause in self._pauses.values() if pause.scope == scope), None)

    def add(self, pause: Pause) -> None:
        """Close the gate. Raises `PauseConflict` if the scope is paused in another mode."""
        current = self.find(pause.scope)
        if current is not None and current.pause_id != pause.pause_id:
            raise PauseConflict(f"{pause.scope} is paused by {current.pause_id} in mode {current.mode}")
        self._pauses[pause.pause_id] = pause
        self._arm(pause)
        self._changed.notify()

    def require(self, pause_id: str) -> Pause:
        """The pause of that id. Raises `PauseExpired` if it is not in force."""
        pause = self._pauses.get(pause_id)
        if pause is None:
            raise PauseExpired(f"pause {pause_id} is not in force: it was lifted or its lease ran out")
        return pause

    def renew(self, pause_id: str, lease_expires_at: float) -> Pause:
        """Give a pause a new end. Raises `PauseExpired` if it is not in force."""
        renewed = replace(self.require(pause_id), lease_expires_at=lease_expires_at)
        self._pauses[pause_id] = renewed
        self._arm(renewed)
        return renewed

    def lift(self, pause_id: str | None) -> list[Pause]:
        """Lift one pause, or all with None; what was lifted. Raises `PauseExpired` for an unknown id."""
        if pause_id is not None:
            self.require(pause_id)
        lifted = [self._pauses.pop(key) for key in ([pause_id] if pause_id is not None else list(self._pauses))]
        for pause in lifted:
            self._timers.pop(pause.pause_id).cancel()
        self._changed.notify()
        return lifted

    def close(self) -> None:
        """Cancel the timers; the pauses stay in the store."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _arm(self, pause: Pause) -> None:
        previous = self._timers.pop(pause.pause_id, None)
        if previous is not None:
            previous.cancel()
        delay = max(0.0, pause.lease_expires_at - time.time())
        self._timers[pause.pause_id] = asyncio.get_running_loop().call_later(delay, self._expire, pause.pause_id)

    def _expire(self, pause_id: str) -> None:
        pause = self._pauses.pop(pause_id, None)
        self._timers.pop(pause_id, None)
        if pause is not None:
            self._changed.notify()
            self._on_expiry(pause)

"""Pauses, and the gate that is closed for the calls they cover. One event loop; no I/O (the store is told by
others).

A pause covers a scope: everything, one session, or one instance. A call runs when no pause covers it. A pause is a
lease: unless renewed it ends by itself, so that a trainer that died cannot stop the agents for good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

SCOPE_ALL = "all"
Scopes = tuple[str, ...]
"""The scopes that a call belongs to: what pauses of it are called."""


def session_scope(session_id: str) -> str:
    """The scope of one session's calls."""
    return f"session:{session_id}"


def instance_scope(instance_id: str) -> str:
    """The scope of the calls of all sessions of one instance."""
    return f"instance:{instance_id}"


def call_scopes(session_id: str, instance_id: str | None) -> Scopes:
    """Every scope that a call of this session is in."""
    instance = () if instance_id is None else (instance_scope(instance_id),)
    return (SCOPE_ALL, session_scope(session_id), *instance)


class PauseConflict(Exception):  # noqa: N818 - the caller's situation
    """Another pause of the same scope is in force in another mode."""


class PauseExpired(Exception):  # noqa: N818 - the caller's situation
    """No such pause: it was lifted, it ran out, or it never was."""


@dataclass(frozen=True, slots=True)
class Pause:
    """`lease_expires_at` is in Unix seconds; `foreign`: another sidecar's, which this one keeps to as well."""

    pause_id: str
    scope: str
    mode: str
    reason: str | None
    lease_expires_at: float
    foreign: bool = False


class Gate:
    """Open to a call while no pause covers it. A scope has one pause of this sidecar's own at most."""

    def __init__(self, on_expiry: Callable[[Pause], None]) -> None:
        """`on_expiry` is called for each pause that ends because nobody renewed it."""
        self._on_expiry = on_expiry
        self._pauses: dict[str, Pause] = {}
        self._by_scope: dict[str, dict[str, Pause]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._waiting: dict[asyncio.Event, Scopes] = {}

    @property
    def open(self) -> bool:
        """No pause is in force."""
        return not self._pauses

    def open_for(self, scopes: Scopes) -> bool:
        """No pause covers a call of these scopes."""
        return not any(scope in self._by_scope for scope in scopes)

    @property
    def pauses(self) -> list[Pause]:
        """The pauses in force, oldest first."""
        return list(self._pauses.values())

    @property
    def suspended(self) -> int:
        """Calls held at the gate."""
        return len(self._waiting)

    def held(self, scope: str) -> int:
        """Calls of one scope held at the gate, by whichever pause."""
        return sum(scope in scopes for scopes in self._waiting.values())

    async def wait_open(self, scopes: Scopes) -> None:
        """Return when no pause covers a call of these scopes; without a turn of the loop if none does."""
        if self.open_for(scopes):
            return
        opened = asyncio.Event()
        self._waiting[opened] = scopes
        try:
            while not self.open_for(scopes):
                opened.clear()
                await opened.wait()
        finally:
            del self._waiting[opened]

    def __contains__(self, pause_id: str) -> bool:
        """Whether that pause is in force."""
        return pause_id in self._pauses

    def find(self, scope: str) -> Pause | None:
        """This sidecar's own pause in force for a scope."""
        return next((pause for pause in self._by_scope.get(scope, {}).values() if not pause.foreign), None)

    def add(self, pause: Pause) -> None:
        """Close the gate for a scope. Raises `PauseConflict` if another pause of it is in force, and neither is
        foreign."""
        current = self.find(pause.scope)
        if current is not None and not pause.foreign and current.pause_id != pause.pause_id:
            raise PauseConflict(f"{pause.scope} is paused by {current.pause_id} in mode {current.mode}")
        self._set(pause)

    def require(self, pause_id: str) -> Pause:
        """The pause of that id. Raises `PauseExpired` if it is not in force."""
        pause = self._pauses.get(pause_id)
        if pause is None:
            raise PauseExpired(f"pause {pause_id} is not in force: it was lifted or its lease ran out")
        return pause

    def renew(self, pause_id: str, lease_expires_at: float) -> Pause:
        """Give a pause a new end. Raises `PauseExpired` if it is not in force."""
        renewed = replace(self.require(pause_id), lease_expires_at=lease_expires_at)
        self._set(renewed)
        return renewed

    def lift(self, pause_id: str | None) -> list[Pause]:
        """Lift one pause, or all with None; what was lifted. Raises `PauseExpired` for an unknown id."""
        if pause_id is not None:
            self.require(pause_id)
        ids = [pause_id] if pause_id is not None else list(self._pauses)
        return [pause for pause in map(self._remove, ids) if pause is not None]

    def close(self) -> None:
        """Cancel the timers; the pauses stay in the store."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _set(self, pause: Pause) -> None:
        self._pauses[pause.pause_id] = pause
        self._by_scope.setdefault(pause.scope, {})[pause.pause_id] = pause
        previous = self._timers.pop(pause.pause_id, None)
        if previous is not None:
            previous.cancel()
        delay = max(0.0, pause.lease_expires_at - time.time())
        self._timers[pause.pause_id] = asyncio.get_running_loop().call_later(delay, self._expire, pause.pause_id)

    def _remove(self, pause_id: str) -> Pause | None:
        """Take a pause out and wake those whom it held; each of them looks again whether another pause does."""
        pause = self._pauses.pop(pause_id, None)
        timer = self._timers.pop(pause_id, None)
        if timer is not None:
            timer.cancel()
        if pause is not None:
            del self._by_scope[pause.scope][pause_id]
            if not self._by_scope[pause.scope]:
                del self._by_scope[pause.scope]
            for opened, scopes in self._waiting.items():
                if pause.scope in scopes:
                    opened.set()
        return pause

    def _expire(self, pause_id: str) -> None:
        pause = self._remove(pause_id)
        if pause is not None:
            self._on_expiry(pause)

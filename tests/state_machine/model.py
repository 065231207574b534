"""What the example has done and what therefore has to be true. Plain data and pure functions.

Time is the number of actions so far.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.state_machine.calls import Call, Follower
from tests.state_machine.world import STALLS, World

SESSIONS: dict[str, str | None] = {"s0": None, "s1": "i", "s2": "i"}
SCOPES = ("all", "session:s0", "session:s1", "instance:i")


@dataclass
class Pause:
    """A pause in force. `quiet`: it said that nothing of its scope runs."""

    pause_id: str
    scope: str
    mode: str
    quiet: bool = False


@dataclass(eq=False)
class Command:
    """A control-plane call under way: `may_wait` says whether it may take its time, `check` looks at its answer."""

    name: str
    task: "asyncio.Task[tuple[int, dict[str, Any]]]"
    may_wait: Callable[[World], bool]
    check: Callable[[int, dict[str, Any]], None]


@dataclass
class Model:
    """`down` and `closed` are since when: of the engine (and until when), and of each session."""

    one_version: bool = False
    """The sidecar runs without `--partial-rollout`."""
    now: int = 0
    pauses: dict[str, Pause] = field(default_factory=dict)
    lifted: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    versions: list[str] = field(default_factory=lambda: ["w0"])
    outages: list[tuple[int, int | None]] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    closed: dict[str, int] = field(default_factory=dict)
    once_closed: dict[str, int] = field(default_factory=dict)
    """Sessions that were closed for a while, since when."""
    discarded: set[str] = field(default_factory=set)
    departures: int = 0
    """How often an agent hung up since the last retry window ended."""
    preemptions: int = 0
    """How often somebody else interrupted the engine's calls."""
    kept: dict[str, list[int]] = field(default_factory=dict)
    """The ids that each step was seen to have; they stay."""
    inside: frozenset[str] = frozenset()
    """The engine calls that were under way at the last look,"""
    in_force: frozenset[str] = frozenset()
    """and the pauses in force then."""

    @property
    def followers(self) -> list[Follower]:
        """All of them."""
        return [follower for call in self.calls for follower in call.followers]

    @property
    def down(self) -> bool:
        """The engine does not listen."""
        return bool(self.outages) and self.outages[-1][1] is None

    def covering(self, scopes: tuple[str, ...]) -> list[Pause]:
        """The pauses in force that cover a call."""
        return [self.pauses[scope] for scope in scopes if scope in self.pauses]

    def pause(self, pause_id: str) -> Pause | None:
        """The pause in force of that id."""
        return next((pause for pause in self.pauses.values() if pause.pause_id == pause_id), None)

    def lift(self, pause: Pause) -> None:
        """It is not in force any more."""
        del self.pauses[pause.scope]
        self.lifted.append(pause.pause_id)

    def reopened(self, session: str) -> None:
        """It had nothing to finalize, and is open again; calls may have been refused meanwhile."""
        self.once_closed[session] = self.closed.pop(session)

    def errors(self, follower: Follower) -> set[str]:
        """The errors that a call may have been answered with, given what happened while it was under way."""
        ended = self.now if follower.ended is None else follower.ended
        allowed: set[str] = set()
        if any(since <= ended and (until is None or until >= follower.begun) for since, until in self.outages):
            allowed.add("engine_unavailable")
        if self.preemptions > STALLS:
            allowed.add("engine_stalled")
        session = follower.call.session
        if min(self.closed.get(session, ended + 1), self.once_closed.get(session, ended + 1)) <= ended:
            allowed |= {"step_aborted", "session_finalized", "session_discarded", "session_closing"}
        if any(follower.begun <= at <= ended for at in self.restarts):
            allowed.add("shutting_down")
        if self.one_version and len(self.versions) > 1:
            allowed.add("trajectory_version_changed")
        return allowed

    def may_break(self, follower: Follower) -> bool:
        """Whether a call may have lost its connection without an answer."""
        ended = self.now if follower.ended is None else follower.ended
        return any(follower.begun <= at <= ended for at in self.restarts)

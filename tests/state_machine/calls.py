"""What agents send, as data: calls, and those who wait for their replies. No I/O."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

STOP_TEXT = "73"
"""A stop string that two tokens spell, and nothing else that is sampled contains."""


@dataclass(frozen=True)
class Shape:
    """How a call is made and what the model answers. `length` counts the ids of the whole reply, its stop token
    included; `stop_at` is where the two tokens of `STOP_TEXT` begin, if the call has that stop string. `penalty`
    makes a reply that cannot be gone on from. `chunked` leaves the size of chunks to the sidecar's request, else
    every id is a chunk; `queued` keeps each engine request in the waiting queue until it may sample."""

    stream: bool = False
    sdk: bool = False
    length: int = 5
    max_tokens: int | None = None
    stop_at: int | None = None
    penalty: bool = False
    chunked: bool = False
    queued: bool = False

    @property
    def complete(self) -> int:
        """Ids of the complete reply."""
        stopped = self.length if self.stop_at is None else self.stop_at + 2
        return min(self.length, stopped, self.max_tokens or self.length)


@dataclass(eq=False)
class Call:
    """One request body, sent once or several times. Its `seed` names it in the engine."""

    seed: int
    session: str
    instance: str | None
    shape: Shape
    body: dict[str, Any]
    followers: list["Follower"] = field(default_factory=list)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes of pauses that cover it."""
        instance = () if self.instance is None else (f"instance:{self.instance}",)
        return ("all", f"session:{self.session}", *instance)


@dataclass(eq=False)
class Follower:
    """One HTTP request. `begun` and `ended` are times of the example's own clock (its steps); `expected_step` is
    the step that a marked retry has to be given, where that is known for sure."""

    call: Call
    marked: bool
    begun: int
    expected_step: str | None = None
    ended: int | None = None
    status: int = 0
    step_id: str | None = None
    text: str = ""
    finish_reason: str | None = None
    code: str | None = None
    """The error's, or its message where it has none."""
    broken: bool = False
    """The connection ended without an answer."""
    left: bool = False
    """It hung up."""
    task: "asyncio.Task[None] | None" = None

    @property
    def waits(self) -> bool:
        """It has not been answered, and has not hung up."""
        assert self.task is not None
        return not self.task.done()

    @property
    def complete(self) -> bool:
        """It has a whole reply to act on."""
        return self.finish_reason is not None and self.code is None

    def __repr__(self) -> str:
        answer = self.finish_reason or self.code or ("broken" if self.broken else "left" if self.left else "none")
        return f"<{self.call.seed}{' marked' if self.marked else ''} step={self.step_id} {self.status} {answer}>"

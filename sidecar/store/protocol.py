"""What the sidecar asks of its store: one Protocol, implemented once over SQL.

Every awaited write is durable when it returns (SQLite WAL with `synchronous=FULL`). Writes of one process are
grouped into transactions by one writer; callers of one event loop may call concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from sqlalchemy import Connection

from sidecar.store.write_totals import WriteTotals
from sidecar.tito.records import StepRecord

if TYPE_CHECKING:
    from sidecar.store.ownership import Fence

T = TypeVar("T")

SessionState = Literal["open", "finalized", "discarded", "expired"]


class StoreError(Exception):
    """The store could not do what was asked; nothing was half-written. The message says what to look at.

    Where the connection to a server was lost at a COMMIT and could not be made again in time, the write may have
    been committed all the same: nobody was told of it, and it is in nobody's way."""


class StoreBusy(StoreError):  # noqa: N818 - it is a state, and the caller answers 503 to it
    """The bounded write queue is full: the caller answers 503 and the agent's library tries again."""


class StoreVersionError(StoreError):
    """The database was written by a newer, incompatible version of this program."""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A sidecar that shares the store, and until when it is known to live, in Unix seconds of the database's clock.

    Its URLs are without `/v1`; None while it starts."""

    sidecar_id: str
    url: str | None
    control_url: str | None
    expires_at: float | None


class StoreFenced(StoreError):  # noqa: N818 - what became of the session
    """Another sidecar has taken the session: nothing of it can be written here any more."""


class LeaseLapsed(StoreError):  # noqa: N818 - a state, which the next renewal ends
    """This sidecar's lease ran out before it could be renewed. Its sessions may be its own still."""


class SessionHeld(StoreError):  # noqa: N818 - where the session is
    """Another live sidecar holds the session, for `seconds_left` unless it renews its lease."""

    def __init__(self, session_id: str, holder: LeaseRow, seconds_left: float) -> None:
        super().__init__(f"session {session_id} is held by sidecar {holder.sidecar_id} at {holder.url}")
        self.session_id = session_id
        self.holder = holder
        self.seconds_left = seconds_left


@dataclass(slots=True)
class SessionRow:
    """One session. `finalization` holds the first reply to `/session/finalize`, label and reward included."""

    session_id: str
    instance_id: str | None
    run_id: str | None
    metadata: dict[str, Any]
    sampling: dict[str, Any]
    """The session's sampling pin, as given to `/session/open`."""
    state: SessionState
    created_at: float
    """Unix seconds; also what a template's clock is pinned to."""
    updated_at: float
    finalization: dict[str, Any] | None = None
    drained_at: float | None = None


@dataclass(slots=True)
class StoredSession:
    """A session with its steps in order of commit (steps without a sequence number last, by creation)."""

    row: SessionRow
    steps: list[StepRecord] = field(default_factory=list)
    blob_bytes: int = 0
    """Of the session's messages and rows, as they are stored."""


@dataclass(frozen=True, slots=True)
class PauseRow:
    """A pause that outlives the process. `lease_expires_at` in Unix seconds."""

    pause_id: str
    scope: str
    mode: str
    reason: str | None
    lease_expires_at: float
    sidecar_id: str | None = None
    """Which sidecar is paused."""


class Store(Protocol):
    """All methods may raise `StoreError`, and then wrote nothing. A call that is cancelled may be written all the
    same."""

    async def start(self) -> None:
        """Open or create the database and upgrade its schema. Raises `StoreVersionError` on a newer one."""

    async def close(self) -> None:
        """Write what is queued, then close."""

    def failure(self) -> str | None:
        """Why the store cannot write at present, or None."""

    def totals(self) -> WriteTotals:
        """What this process wrote since it started."""

    async def save_session(self, row: SessionRow, fence: Fence | None = None) -> None:
        """Insert or replace a session's row. With a `fence`, this and the writes below raise `StoreFenced` once
        another sidecar has the session, and `LeaseLapsed` while this one's lease is over."""

    async def create_session(self, row: SessionRow, fence: Fence) -> None:
        """Insert a session that the fence's sidecar owns. Raises `StoreFenced` if another one was faster."""

    async def load_session(self, session_id: str) -> StoredSession | None:
        """The session with all its steps, or None for an id never seen."""

    async def save_step(self, step: StepRecord, blobs: Mapping[bytes, bytes], fence: Fence | None = None) -> None:
        """Insert a step or replace the one with its `step_id`, and the blobs (key -> bytes) it refers to. Its
        session has to be saved first.

        A blob is kept once per session, whichever step brings it first."""

    def mark_delivered(self, session_id: str, step_id: str, fence: Fence | None = None) -> None:
        """Set `delivered` in a later group commit; never blocks and never fails the caller."""

    async def discard_session(self, row: SessionRow, fence: Fence | None = None) -> int:
        """Save `row` as a tombstone and delete the session's steps and blobs; the number of steps deleted."""

    async def read_blobs(self, session_id: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The blobs of a session by key. Raises `StoreError` if one is missing."""

    async def save_pause(self, pause: PauseRow) -> None:
        """Insert or replace a pause."""

    async def delete_pauses(self, pause_ids: Sequence[str]) -> None:
        """Forget pauses; unknown ids are ignored."""

    async def list_pauses(self) -> list[PauseRow]:
        """All pauses, expired ones included."""

    async def query(self, what: str, work: Callable[[Connection], T]) -> T:
        """Run `work` on a snapshot: for views of many sessions (`listing.py`), which do not hold up the writer."""

    async def transact(self, what: str, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction of its own, which has to be short: the writer waits meanwhile."""

    async def counts(self) -> dict[str, int]:
        """`{"sessions": n, "steps": n}` for views and `/trajectory/stats`."""

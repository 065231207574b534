"""All sessions: loaded from the store on first use, opened, looked at, finalized, discarded. One event loop.

A session is in memory while it is open and this sidecar's own; finalized ones are rebuilt from the store when they
are read. Whatever needs the session raises `SessionHeld` while another live sidecar owns it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from adapters.protocols.errors import bad_field
from sidecar.generation.controller import Controller
from sidecar.replicas.claims import Claims
from sidecar.sessions.errors import (
    session_closed,
    session_moved,
    session_of_another_run,
    session_unknown,
    unavailable,
)
from sidecar.sessions.finalizing import final_plans, finalize_reply
from sidecar.sessions.loading import Loader
from sidecar.sessions.memory import SessionMemory
from sidecar.sessions.policy import Policy
from sidecar.sessions.room import Room
from sidecar.sessions.rules import recorded_rules
from sidecar.sessions.session import Session
from sidecar.sessions.view import session_view
from sidecar.store.ownership import Fence
from sidecar.store.protocol import SessionRow, Store, StoreFenced
from sidecar.tito.model import Model
from sidecar.tito.reading import Readings
from sidecar.tito.segments import NoSteps, plan_segments

log = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_ID = 256
_NOTHING_DISCARDED = {"success": True, "session_removed": False, "segments_removed": 0}


def check_session_id(session_id: str) -> str:
    """A usable session id. Raises `RequestError` (400)."""
    if not 1 <= len(session_id) <= LONGEST_ID or not session_id.isprintable() or "/" in session_id:
        raise bad_field("session_id", session_id, f"send 1 to {LONGEST_ID} printable characters without /")
    return session_id


class Registry:
    """Sessions by id."""

    def __init__(self, store: Store, claims: Claims, controller: Controller, model: Model, policy: Policy) -> None:
        self._store = store
        self._policy = policy
        self._loader = Loader(store, claims, controller, model, policy.retry_window, self._on_fenced)
        self.counts = self._loader.counts
        self.memory = self._sessions = SessionMemory()
        self._room = Room(self._sessions, policy.max_total_bytes)
        self._loading: dict[str, asyncio.Task[Session | None]] = {}
        self._taken: dict[str, asyncio.Task[Any]] = {}
        """Work on the store during which a session must not be loaded."""
        self.stopping = False

    def readings(self, session_id: str) -> Readings:
        """What the last requests of a session said; nothing if it is not in memory."""
        session = self._sessions.get(session_id)
        return session.readings if session is not None else Readings()

    async def for_call(self, session_id: str, instance_id: str | None) -> Session:
        """The open session of an agent's call; an id never seen opens one. Raises `RequestError`."""
        if self.stopping:
            raise unavailable("the sidecar is shutting down", "shutting_down")
        failure = self._store.failure()
        if failure is not None:  # known before the engine works for a reply that could not be given
            raise unavailable(f"the store cannot write: {failure}", "store_unavailable")
        await self._room.make()
        fields = {"instance_id": instance_id}
        return self._open(await self._find_or_create(check_session_id(session_id), fields))

    async def open(self, session_id: str | None, fields: dict[str, Any], *, hand_over: bool = False) -> Session:
        """Open a session, or find the open one of that id. `fields` are those of its row. `hand_over` leaves it to
        the sidecar that is asked for it next."""
        session_id = check_session_id(session_id if session_id is not None else uuid.uuid4().hex)
        session = await self._find_or_create(session_id, fields)
        await self._join_run(self._open(session), fields.get("run_id"))
        if hand_over and session.idle and not len(session.trajectory):
            self._sessions.pop(session.session_id, None)  # who asks for it here meanwhile claims it anew
            await self._loader.give_up(session)
        return session

    async def _join_run(self, session: Session, run_id: str | None) -> None:
        """Weight versions are compared within a run only: a session without a run or without steps joins the one
        that is named, another one has to be of it."""
        row = session.row
        if run_id is None or run_id == row.run_id:
            return
        if row.run_id is not None and (len(session.trajectory) or session.runs or len(session.waiting)):
            raise session_of_another_run(session.session_id, row.run_id, run_id)
        row.run_id, row.updated_at = run_id, time.time()
        await session.store.save_session(row)

    @staticmethod
    def _open(session: Session) -> Session:
        if session.store.lost is not None:
            raise session_moved(session.session_id)
        if not session.open:  # one that is being closed counts as closed
            state = "finalized" if session.row.state == "open" else session.row.state
            raise session_closed(session.session_id, state)
        return session

    async def finalize(
        self,
        session_id: str,
        *,
        instance_id: str | None,
        label: Any,
        reward: Any,
        anchor_step_id: str | None,
        timeout: float,
    ) -> dict[str, Any]:
        """Close a session for training; a repeat gets the first reply. Raises `RequestError`."""
        session = await self._known(session_id)
        async with session.lock:
            row = session.row
            if row.finalization is not None:
                reply: dict[str, Any] = row.finalization["reply"]
                return reply
            if row.state != "open":
                raise session_closed(session_id, row.state)
            session.closing = True
            try:
                aborted = await session.quiet(timeout)
                rules = self._policy.training
                plans = final_plans(session, anchor_step_id, rules)
                row.instance_id = instance_id or row.instance_id
                reply = finalize_reply(session, plans, aborted)
                row.finalization = {
                    "reply": reply,
                    "label": label,
                    "reward": reward,
                    "anchor_step_id": anchor_step_id,
                    **recorded_rules(rules),
                }
                row.state, row.updated_at = "finalized", time.time()
                await session.store.save_session(row)
            except BaseException:
                session.closing, row.state, row.finalization = False, "open", None
                raise
            self._sessions.pop(session_id, None)
            return reply

    async def discard(self, session_id: str) -> dict[str, Any]:
        """Abort what runs and forget the steps; a second time changes nothing. Raises `RequestError`."""
        session = await self._find(session_id)
        if session is None:
            return _NOTHING_DISCARDED
        async with session.lock:
            if session.row.state in ("discarded", "expired"):
                return _NOTHING_DISCARDED
            try:
                segments = len(plan_segments(session.trajectory, rules=self._policy.training))
            except NoSteps:
                segments = 0
            await self._loader.claim_closed(session)
            before = session.row.state
            session.closing = True
            session.row.state, session.row.updated_at = "discarded", time.time()
            try:
                await session.quiet(0)
                await session.store.discard_session(session.row)
            except BaseException:
                session.closing, session.row.state = False, before
                raise
            self._sessions.pop(session_id, None)
            return {"success": True, "session_removed": True, "segments_removed": segments}

    async def view(self, session_id: str) -> dict[str, Any]:
        """The live view of `GET /session/{id}`. Raises `RequestError` (404)."""
        return await session_view(await self._known(session_id), self._policy.rules)

    async def while_unloaded(self, session_id: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """What `work` gives; whoever asks for the session waits for its end. None, without doing it, if the session
        is in memory."""
        if session_id in self._sessions or session_id in self._loading or session_id in self._taken:
            return None
        self._taken[session_id] = task = asyncio.get_running_loop().create_task(work())
        task.add_done_callback(partial(self._give_back, session_id))
        return await asyncio.shield(task)

    def _give_back(self, session_id: str, task: asyncio.Task[Any]) -> None:
        del self._taken[session_id]
        if not task.cancelled():
            task.exception()  # nobody else may look any more

    async def stop(self, timeout: float) -> None:
        """Refuse new calls, give running steps `timeout` seconds to be committed, then cancel them. Detached steps
        are in the store already."""
        self.stopping = True
        runs = [run for session in self._sessions.values() for run in session.runs.values()]
        running = [run.task for run in runs if not run.detached]
        if running:
            await asyncio.wait(running, timeout=timeout)
        tasks = [run.task for run in runs if not run.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for session in self._sessions.values():
            session.waiting.stop()

    async def _known(self, session_id: str) -> Session:
        session = await self._find(session_id)
        if session is None:
            raise session_unknown(session_id)
        return session

    async def _find(self, session_id: str) -> Session | None:
        """From memory or from the store; concurrent callers share one load. Only open sessions stay in memory."""
        while (taken := self._taken.get(session_id)) is not None:
            await asyncio.wait([taken])
        known = self._sessions.get(session_id)
        if known is not None and await self._loader.still_ours(known):
            return known
        loading = self._loading.get(session_id)
        if loading is None:
            loading = self._begin(session_id, self._load(session_id))
        return await asyncio.shield(loading)

    async def _find_or_create(self, session_id: str, fields: dict[str, Any]) -> Session:
        """The session, made by one of those who ask for it at once: another one that looked into the store in the
        meantime would claim it anew, and fence the first."""
        while (session := await self._find(session_id)) is None:
            if session_id not in self._loading:
                self._begin(session_id, self._create(session_id, fields))
        return session

    def _begin(self, session_id: str, work: Coroutine[Any, Any, Session | None]) -> asyncio.Task[Session | None]:
        """Whoever asks for the session meanwhile waits for this."""
        self._loading[session_id] = loading = asyncio.get_running_loop().create_task(work)
        loading.add_done_callback(lambda _: self._loading.pop(session_id, None))
        return loading

    async def _load(self, session_id: str) -> Session | None:
        session = await self._loader.load(session_id)
        if session is None or not session.open:
            return session
        if session.store.lost is not None:  # taken while it was loaded, when nobody could be told
            raise session_moved(session_id)
        return self._sessions.setdefault(session_id, session)

    def _on_fenced(self, session_id: str, fence: Fence | None) -> None:
        """Another sidecar has the session: forget it and end what runs; its calls are told to try again."""
        log.warning("session lost to another sidecar: session_id=%s", session_id)
        session = self._sessions.get(session_id)
        if session is not None and session.store.fence is fence:
            del self._sessions[session_id]
            session.lose()

    def compare(self, owned: Mapping[str, int]) -> None:
        """After a time without a lease: give up the sessions that others have taken since. `owned` are the epochs
        of this sidecar's sessions in the store, read while the lease was valid again."""
        for session in self._sessions.values():
            fence, session_id = session.store.fence, session.session_id
            if fence is not None and owned.get(session_id) != fence.epoch:
                session.store.lose(StoreFenced(f"session {session_id} was taken over while the lease was over"))

    async def _create(self, session_id: str, fields: dict[str, Any]) -> Session | None:
        if not fields.get("sampling") and not self._policy.sampling_pin:
            log.warning(
                "session without a sampling pin: session_id=%s; agents choose temperature and top_p", session_id
            )
        now = time.time()
        row = SessionRow(
            session_id=session_id,
            instance_id=fields.get("instance_id"),
            run_id=fields.get("run_id"),
            metadata=fields.get("metadata") or {},
            sampling=fields.get("sampling") or {},
            state="open",
            created_at=now,
            updated_at=now,
        )
        session = self._sessions[session_id] = self._loader.new(row)
        try:
            await session.store.create_session(row)
        except StoreFenced:  # another sidecar created it just now
            return await self._load(session_id)
        except BaseException:
            self._sessions.pop(session_id, None)
            raise
        return session

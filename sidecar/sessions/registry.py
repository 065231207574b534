"""All sessions: loaded from the store on first use, opened, looked at, finalized, discarded. One event loop.

A session is in memory while it is open; finalized ones are rebuilt from the store when they are read.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Any

from adapters.protocols.errors import RequestError, bad_field
from sidecar.generation.controller import Controller
from sidecar.sessions.errors import session_closed, session_of_another_run, session_unknown, unavailable
from sidecar.sessions.export import recorded_rules, training_rules
from sidecar.sessions.policy import Policy
from sidecar.sessions.segments_read import read_segments
from sidecar.sessions.session import Session
from sidecar.sessions.view import session_view
from sidecar.store.protocol import SessionRow, Store, StoredSession
from sidecar.tito.model import Model
from sidecar.tito.modes import recorded_modes
from sidecar.tito.reading import Readings
from sidecar.tito.segments import NoSteps, SegmentPlan, TrainingRules, plan_segments
from sidecar.tito.trajectory import main_lineage

log = logging.getLogger(__name__)

LONGEST_ID = 256
_NOTHING_DISCARDED = {"success": True, "session_removed": False, "segments_removed": 0}


def check_session_id(session_id: str) -> str:
    """A usable session id. Raises `RequestError` (400)."""
    if not 1 <= len(session_id) <= LONGEST_ID or not session_id.isprintable() or "/" in session_id:
        raise bad_field("session_id", session_id, f"send 1 to {LONGEST_ID} printable characters without /")
    return session_id


class Registry:
    """Sessions by id."""

    def __init__(self, store: Store, controller: Controller, model: Model, policy: Policy) -> None:
        self._store = store
        self._policy = policy
        self._controller = controller
        self._model = model
        self._sessions: dict[str, Session] = {}
        self._loading: dict[str, asyncio.Task[Session | None]] = {}
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
        session = await self._find(check_session_id(session_id))
        if session is None:
            session = await self._create(session_id, {"instance_id": instance_id})
        return self._open(session)

    async def open(self, session_id: str | None, fields: dict[str, Any]) -> Session:
        """Open a session, or find the open one of that id. `fields` are those of its row."""
        session_id = check_session_id(session_id if session_id is not None else uuid.uuid4().hex)
        session = await self._find(session_id)
        if session is None:
            return await self._create(session_id, fields)
        await self._join_run(self._open(session), fields.get("run_id"))
        return session

    async def _join_run(self, session: Session, run_id: str | None) -> None:
        """Weight versions are compared within a run only: a session without a run or without steps joins the one
        that is named, another one has to be of it."""
        row = session.row
        if run_id is None or run_id == row.run_id:
            return
        if row.run_id is not None and (len(session.trajectory) or session.runs):
            raise session_of_another_run(session.session_id, row.run_id, run_id)
        row.run_id, row.updated_at = run_id, time.time()
        await self._store.save_session(row)

    @staticmethod
    def _open(session: Session) -> Session:
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
            if row.state == "discarded":
                raise session_closed(session_id, "discarded")
            session.closing = True
            try:
                aborted = await session.quiet(timeout)
                rules = self._policy.training
                plans = self._plans(session, anchor_step_id, rules)
                row.instance_id = instance_id or row.instance_id
                reply = self._summary(session, plans, aborted)
                row.finalization = {
                    "reply": reply,
                    "label": label,
                    "reward": reward,
                    "anchor_step_id": anchor_step_id,
                    **recorded_rules(rules),
                }
                row.state, row.updated_at = "finalized", time.time()
                await self._store.save_session(row)
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
            if session.row.state == "discarded":
                return _NOTHING_DISCARDED
            try:
                segments = len(plan_segments(session.trajectory, rules=self._policy.training))
            except NoSteps:
                segments = 0
            before = session.row.state
            session.closing = True
            session.row.state, session.row.updated_at = "discarded", time.time()
            try:
                await session.quiet(0)
                await self._store.discard_session(session.row)
            except BaseException:
                session.closing, session.row.state = False, before
                raise
            self._sessions.pop(session_id, None)
            return {"success": True, "session_removed": True, "segments_removed": segments}

    async def view(self, session_id: str) -> dict[str, Any]:
        """The live view of `GET /session/{id}`. Raises `RequestError` (404)."""
        return await session_view(await self._known(session_id), self._policy.rules)

    async def read(self, session_id: str, *, drain: bool, include_drained: bool) -> dict[str, Any]:
        """The segments of a finalized session. Raises `RequestError`."""
        session = await self._known(session_id)
        row = session.row
        if row.state == "discarded":
            raise session_closed(session_id, "discarded")
        if row.finalization is None:
            raise RequestError(
                409,
                f"session {session_id!r} is {row.state}; finalize it before it is read",
                code="session_not_finalized",
                retry=False,
            )
        if row.drained_at is not None and not include_drained:
            return {"success": True, "data": [], "drained": True}
        plans = self._plans(session, row.finalization["anchor_step_id"], training_rules(row))
        data = await read_segments(self._store, session, plans)
        if drain and row.drained_at is None:
            row.drained_at = time.time()
            await self._store.save_session(row)
        return {"success": True, "data": data, "drained": row.drained_at is not None}

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

    async def _known(self, session_id: str) -> Session:
        session = await self._find(session_id)
        if session is None:
            raise session_unknown(session_id)
        return session

    async def _find(self, session_id: str) -> Session | None:
        """From memory or from the store; concurrent callers share one load. Only open sessions stay in memory."""
        known = self._sessions.get(session_id)
        if known is not None:
            return known
        loading = self._loading.get(session_id)
        if loading is None:
            loading = asyncio.get_running_loop().create_task(self._load(session_id))
            self._loading[session_id] = loading
            loading.add_done_callback(lambda _: self._loading.pop(session_id, None))
        return await asyncio.shield(loading)

    async def _load(self, session_id: str) -> Session | None:
        stored = await self._store.load_session(session_id)
        if stored is None:
            return None
        session = Session(stored, self._store, self._controller, self._model)
        if session.open:
            await session.settle_interrupted()
            session = self._sessions.setdefault(session_id, session)
        return session

    async def _create(self, session_id: str, fields: dict[str, Any]) -> Session:
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
        session = self._sessions.setdefault(
            session_id, Session(StoredSession(row), self._store, self._controller, self._model)
        )
        if session.row is row:
            try:
                await self._store.save_session(row)
            except BaseException:
                del self._sessions[session_id]
                raise
        return session

    @staticmethod
    def _plans(session: Session, anchor_step_id: str | None, rules: TrainingRules) -> list[SegmentPlan]:
        try:
            return plan_segments(session.trajectory, anchor_step_id, rules)
        except NoSteps:
            raise RequestError(
                400, f"session {session.session_id!r} has no steps; discard it instead", code="no_steps"
            ) from None
        except KeyError:
            raise bad_field("anchor_step_id", anchor_step_id, "send a step id of this session") from None

    @staticmethod
    def _summary(session: Session, plans: list[SegmentPlan], aborted: list[str]) -> dict[str, Any]:
        main = main_lineage(session.trajectory)
        return {
            "success": True,
            "aborted_step_ids": aborted,
            "session_id": session.session_id,
            "trajectory_id": session.session_id,
            "instance_id": session.row.instance_id,
            "finalization_id": uuid.uuid4().hex,
            "num_steps": sum(node.record.state == "committed" for node in session.trajectory),
            "num_turns": sum(node.delivered and node.record.state == "committed" for node in main),
            "num_segments": len(plans),
            "history_rewritten": any(plan.reason == "history_rewrite" for plan in plans),
            "token_build_mode": recorded_modes(plans[-1].leaf.record.extra)["token_build_mode"],
        }

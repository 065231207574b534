"""One session in memory: its row, its trajectory, and the steps that run. One event loop; calls never wait for
each other's generation.

The trajectory holds final steps only, and only those that the store has: a request that fails changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from adapters.models.reply import Reply, join
from sidecar.generation.controller import Controller
from sidecar.generation.generation import Generation
from sidecar.sessions.draft import StepDraft
from sidecar.sessions.engine_reply import settle_reply
from sidecar.sessions.row_blobs import rows_blob
from sidecar.sessions.sizes import SessionSize
from sidecar.sessions.step_counts import StepCounts
from sidecar.sessions.step_run import StepAborted, StepRun
from sidecar.sessions.waiting import WaitingSteps
from sidecar.store.protocol import SessionRow, StoredSession, StoreError
from sidecar.store.session_store import SessionStore
from sidecar.tito.breaks import Place
from sidecar.tito.model import Model
from sidecar.tito.reading import Readings
from sidecar.tito.records import StepRecord
from sidecar.tito.reply_text import ReplyText
from sidecar.tito.trajectory import Node, Trajectory
from sidecar.tito.version_rules import check_same_version, sampled_versions

log = logging.getLogger(__name__)

_LAST_BYTES = 1.0
"""Seconds that a session's end waits for replies which are complete but not yet written."""


class Session:
    """A session's live state. Made by the registry, from the store's row and steps."""

    def __init__(
        self,
        stored: StoredSession,
        store: SessionStore,
        controller: Controller,
        model: Model,
        counts: StepCounts,
    ) -> None:
        """`counts` are those of all sessions of the process."""
        self.row: SessionRow = stored.row
        self.trajectory = Trajectory()
        self.readings = Readings()
        self.breaks: dict[str, Place] = {}
        """What broke the match of roots and branches, as far as somebody asked (`view.py`)."""
        self.runs: dict[str, StepRun] = {}
        """Steps that run or wait for a retry, by step id."""
        self.waiting = WaitingSteps()
        """Steps that wait for a retry although no run owns them."""
        self.lock = asyncio.Lock()
        """Held while the session is finalized or discarded."""
        self.closing = False
        """A finalize or discard is under way: no new calls."""
        self.readers = 0
        """Replies on their way to agents, those of recorded steps included."""
        self.flushed = False
        """The store has everything that was noted without waiting for it (`mark_delivered`)."""
        self._leaving: list[asyncio.Event] = []
        """Each is set when a step's reply is out; of all steps that may have readers, finished ones included. The
        runs themselves would keep whole prompts as JSON."""
        self.store = store
        self._controller = controller
        self._model = model
        self._counts = counts
        self._ticks = 0
        self._detached: list[StepRecord] = []
        self.size = SessionSize(stored.blob_bytes)
        for record in stored.steps:
            self._restore(record)

    def _restore(self, record: StepRecord) -> None:
        self._ticks = max(self._ticks, record.begun + 1, (record.sequence or 0) + 1)
        if record.state == "detached":
            self._detached.append(record)  # the process that waited for its retry is gone
            return
        try:
            self.trajectory.add(record)
            self.size.add(record, {})
        except ValueError as error:
            what = f"session {record.session_id}: a stored step does not fit the others ({error})"
            raise StoreError(f"{what}; restore a copy of the store, or discard the session") from error

    async def await_retries(self, window: float) -> None:
        """Let the steps that were detached when the last process ended wait for what is left of their windows.
        Raises `StoreError`."""
        await self.waiting.restore(self._detached, window, self._append)
        self._detached = []

    def tick(self) -> int:
        """The next reading of the session's clock (`StepRecord.begun`)."""
        self._ticks += 1
        return self._ticks - 1

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.row.session_id

    @property
    def clock(self) -> datetime:
        """What the template sees as now: the session's beginning in UTC, for all of its requests, on every machine
        that serves it. It names no zone, as the clock that transformers gives templates."""
        return datetime.fromtimestamp(self.row.created_at, UTC).replace(tzinfo=None)

    @property
    def open(self) -> bool:
        """New calls are welcome."""
        return self.row.state == "open" and not self.closing

    @property
    def idle(self) -> bool:
        """Nothing is under way in it: no step runs or waits for a retry, no reply leaves, nobody closes it."""
        return not (self.runs or len(self.waiting) or self.readers or self.closing or self.lock.locked())

    async def flush(self) -> None:
        """Until the store has all of it, delivered marks included; `flushed` if nothing new came meanwhile. Raises
        `StoreError`."""
        self.flushed = True
        try:
            await self.store.save_session(self.row)  # writes are committed in order
        except BaseException:
            self.flushed = False
            raise

    def running(self, body_hash: bytes) -> list[StepRun]:
        """Steps with that request body that run or wait for a retry, oldest first."""
        return [run for run in self.runs.values() if run.joinable and run.draft.body_hash == body_hash]

    def finished(self, body_hash: bytes) -> list[Node]:
        """Committed steps with that request body that no retry superseded, oldest first."""
        return [
            node
            for node in self.trajectory
            if node.record.body_hash == body_hash
            and node.record.state == "committed"
            and node.record.superseded_by is None
        ]

    def start(
        self, draft: StepDraft, generation: Generation, retry_window: float, stored: StepRecord | None = None
    ) -> StepRun:
        """Run a step; `stored`: one of `waiting`, whose retry came."""
        if stored is not None:
            self.waiting.take(stored.step_id)
        run = StepRun(self, draft, generation, retry_window, stored)
        self.runs[draft.step_id] = run
        self._leaving = [*(out for out in self._leaving if not out.is_set()), run.unfollowed]
        return run

    async def read_blobs(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Stored messages and tools by hash. Raises `StoreError`."""
        return await self.store.read_blobs(self.session_id, keys)

    def new_text(self, draft: StepDraft) -> ReplyText:
        """A fresh pipeline for a step's reply."""
        return self._model.reply_text(
            draft.prompt.tail,
            draft.use_tools,
            draft.sampling.get("stop") or (),
            lambda n: f"call_{draft.step_id}_{n}",
            draft.tools,
        )

    async def generate(self, generation: Generation, draft: StepDraft) -> None:
        """See `StepOwner`."""
        await self._controller.run(
            generation,
            lambda: self.new_text(draft),
            lambda version: self._check_versions(generation, [version] if version is not None else []),
        )

    def _check_versions(self, generation: Generation, versions: Sequence[str]) -> None:
        """Without `--partial-rollout` all steps of a session come from one version. Raises `VersionChanged`."""
        if not generation.request.one_version:
            return
        for node in self.trajectory:
            if node.record.state == "committed":
                check_same_version(self.session_id, sampled_versions(node.record), versions)

    async def read_reply(self, run: StepRun) -> tuple[Reply, dict[str, Any]]:
        """See `StepOwner`. The engine is asked at most once."""
        generation = run.generation
        held = generation.text.held
        if held is None:
            return join(generation.text.deltas), {}
        cut = generation.finish is not None and generation.finish.kind == "length"
        return await settle_reply(
            held, self._controller.parsing, cut=cut, session_id=self.session_id, step_id=run.step_id
        )

    async def commit(self, run: StepRun, record: StepRecord) -> None:
        """See `StepOwner`. An aborted step that a marked retry has replaced already says so."""
        if record.state == "committed":
            self._check_versions(run.generation, sampled_versions(record))
        await self._append(record, {**run.draft.blobs, **rows_blob(run.generation, record)})
        self._counts.interruptions += run.generation.preemptions
        run.generation.rows = None  # they are most of a step's bytes, and nothing but training reads them
        if record.state == "committed" and record.retry_count:
            await self._supersede_aborted(record)

    async def _append(self, record: StepRecord, blobs: Mapping[bytes, bytes]) -> None:
        if self.row.state == "discarded":
            raise StepAborted("its session was discarded")
        record.sequence = self.tick()
        await self.store.save_step(record, blobs)
        self.trajectory.add(record)
        self.size.add(record, blobs)
        self._counts.add(record)

    async def _supersede_aborted(self, record: StepRecord) -> None:
        """Note on aborted steps which one took their place. `record` is committed and stays so, whatever the store
        says to the notes: they change nothing that trains."""
        for node in list(self.trajectory):  # others may be committed while the store writes
            earlier = node.record
            if earlier.body_hash == record.body_hash and earlier.state == "aborted" and not earlier.superseded_by:
                earlier.superseded_by = record.step_id
                try:
                    await self.store.save_step(earlier, {})
                except StoreError as error:
                    log.warning("step %s is not stored as superseded: %s", earlier.step_id, error)

    async def store_detached(self, record: StepRecord) -> None:
        """See `StepOwner`."""
        if self.row.state != "discarded":
            await self.store.save_step(record, self.runs[record.step_id].draft.blobs)

    def leave(self, record: StepRecord, draft: StepDraft) -> None:
        """See `StepOwner`."""
        if self.row.state != "discarded" and self.store.lost is None:
            self.waiting.leave(record, draft.blobs, self._append)

    def retire(self, run: StepRun) -> None:
        """See `StepOwner`."""
        self.runs.pop(run.step_id, None)

    def mark_delivered(self, step_id: str) -> None:
        """The agent has the whole reply. Told too late, it does not count: a finalized session reads the same for
        ever."""
        node = self.trajectory.get(step_id)
        if node is not None and not node.record.delivered and self.row.state == "open":
            node.record.delivered = True
            self.flushed = False
            self.store.mark_delivered(self.session_id, step_id)

    def lose(self) -> None:
        """Another sidecar has the session: end what runs here; nothing of it can be stored any more."""
        self.closing = True
        self.waiting.stop()
        for run in list(self.runs.values()):
            run.abort("another sidecar has taken the session over")

    async def quiet(self, timeout: float) -> list[str]:
        """Wait for calls in flight, then abort the rest; the ids of the aborted steps."""
        deadline = asyncio.get_running_loop().time() + timeout
        for run in [run for run in self.runs.values() if run.detached]:
            run.abort("its session is closed")
        await self.end_waiting(list(self.waiting))
        pending = {run.task for run in self.runs.values()}
        if pending:
            await asyncio.wait(pending, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        late = list(self.runs.values())
        for run in late:
            run.abort("its session is closed")
        if late:
            await asyncio.wait([run.task for run in late])
        await self.end_waiting(list(self.waiting))  # those whose end could not be stored
        await self._replies_out()
        return [node.record.step_id for node in self.trajectory if node.record.state == "aborted"]

    async def end_waiting(self, records: Sequence[StepRecord]) -> None:
        """Record steps of `waiting` as aborted, now. Raises `StoreError`."""
        if self.row.state == "discarded":
            self.waiting.stop()
        else:
            await self.waiting.end(records, self._append)

    async def _replies_out(self) -> None:
        """Until the replies of steps that were just committed have left, so that they count as delivered; a slow
        agent is not waited for."""
        leaving = [asyncio.ensure_future(out.wait()) for out in self._leaving]
        if leaving:
            _, late = await asyncio.wait(leaving, timeout=_LAST_BYTES)
            for task in late:
                task.cancel()

"""A step while it runs: a task of its session that generates, commits, and alone decides when it is done.

HTTP handlers only follow. When the last one leaves, the engine's call is aborted and the step is *detached*: it
waits for a marked retry (`resume`) and otherwise ends as aborted. The same happens when the engine makes no
progress, which the handlers are told. Nothing reaches the trajectory before the store has it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from adapters.models.reply import Reply
from adapters.protocols.errors import RequestError
from sidecar.generation.controller import Stalled
from sidecar.generation.generation import Generation
from sidecar.sessions.draft import StepDraft
from sidecar.sessions.step_reader import StepReader
from sidecar.store.protocol import StoreError
from sidecar.tito.records import StepRecord

log = logging.getLogger(__name__)

_SLICE = 4096
"""Ids that are decoded in one go: 2 ms."""


class StepAborted(Exception):  # noqa: N818 - what happened to the step
    """The session was finalized or discarded while the step ran."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """A committed step, as the agent is told of it."""

    step_id: str
    reply: Reply
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    record: StepRecord


class StepOwner(Protocol):
    """What a run needs of its session."""

    @property
    def open(self) -> bool:
        """New calls are welcome, so that a retry may come."""

    async def generate(self, generation: Generation, draft: StepDraft) -> None:
        """Fill the generation; may raise engine errors."""

    async def read_reply(self, run: StepRun) -> tuple[Reply, dict[str, Any]]:
        """The reply of a finished generation, and what is to be recorded of how it was read."""

    async def commit(self, run: StepRun, record: StepRecord) -> None:
        """Store the final step, then add it to the trajectory."""

    async def store_detached(self, record: StepRecord) -> None:
        """Store a step that waits for its retry."""

    def leave(self, record: StepRecord, draft: StepDraft) -> None:
        """Keep a step whose run is over, though the store could not be told how it ended."""

    def retire(self, run: StepRun) -> None:
        """The run is over: forget it."""


class StepRun:
    """One running step. `retry_window` is how many seconds a detached step waits for its retry.

    `stored` is what the store has of a step that an earlier process left detached, and that goes on here."""

    def __init__(
        self,
        owner: StepOwner,
        draft: StepDraft,
        generation: Generation,
        retry_window: float,
        stored: StepRecord | None = None,
    ) -> None:
        self.draft = draft
        self.generation = generation
        self.result: StepResult | None = None
        self.failure: Exception | None = None
        self.detached = False
        self.unfollowed = asyncio.Event()
        """Nobody follows any more: the reply has gone out, or its agent is gone."""
        self._owner = owner
        self._retry_window = retry_window
        self._readers: set[StepReader] = set()
        self._ending = False
        self._abort_reason: str | None = None
        self._stored = stored
        """The step as the store has it while it is not final; None if the store has none of it."""
        self._committing = False
        self._resumed = asyncio.Event()
        self._engine: asyncio.Task[None] | None = None
        self._done = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"step {draft.step_id}")

    @property
    def step_id(self) -> str:
        """Drawn at admission; it is in the reply's headers."""
        return self.draft.step_id

    @property
    def over(self) -> bool:
        """Committed, aborted or failed."""
        return self._done.is_set()

    @property
    def joinable(self) -> bool:
        """A retry may still follow: no final record is being written without a reply."""
        return not self.over and not self._ending

    def subscribe(self, wake: asyncio.Event, *, tokens: bool = True) -> StepReader:
        """Follow this step: `wake` is set when it is over, and with `tokens` whenever there is something to read. A
        detached step goes on."""
        reader = StepReader(self, wake)
        self._readers.add(reader)
        self.unfollowed.clear()
        if tokens:
            self.generation.listeners.add(wake)
        if self.detached:
            self.detached = False
            self._resumed.set()
        return reader

    def leave(self, reader: StepReader) -> None:
        """A reader left; with the last one the engine's call is aborted and the step detached."""
        self._readers.remove(reader)
        if self._readers:
            return
        self.unfollowed.set()
        if not self.over and not self.detached:
            self._detach()
            if self._engine is not None:
                self._engine.cancel()

    def _detach(self) -> None:
        self.detached = True
        self._resumed.clear()

    def abort(self, reason: str) -> None:
        """End the step for good (its session is being closed); it is recorded as aborted."""
        if self._abort_reason is None and not self.over:
            self._abort_reason = reason
            self._resumed.set()
            if self._engine is not None:
                self._engine.cancel()

    async def wait(self) -> StepResult:
        """The committed step. Raises what ended it otherwise."""
        await self._done.wait()
        if self.failure is not None:
            raise self.failure
        assert self.result is not None
        return self.result

    async def _run(self) -> None:
        try:
            await self._generate_until_done()
        except asyncio.CancelledError:
            self.failure = RequestError(
                503, "the sidecar is shutting down", kind="server_error", code="shutting_down", retry_after=1
            )
            await self._store_cut()
            raise
        except Exception as error:
            self.failure = error
            if not isinstance(error, StepAborted):
                log.info("step failed: session_id=%s step_id=%s: %s", self.draft.session_id, self.step_id, error)
                await self._abort_stored()
        finally:
            self._owner.retire(self)
            self._done.set()
            self._wake_readers()

    def _wake_readers(self) -> None:
        for reader in self._readers:
            reader.wake.set()

    async def _abort_stored(self) -> None:
        """A step that failed leaves no trace, but one that was detached before is in the store, and ends there."""
        if self._stored is None:
            return
        try:
            await self._commit_aborted("it failed after it had been detached")
        except StepAborted:
            pass
        except StoreError:
            self._owner.leave(self._stored, self.draft)

    async def _store_cut(self) -> None:
        """The process ends: a marked retry that reaches the next one goes on from what was sampled here. A step
        that waits for its retry is stored already, and one that is complete must not go on."""
        generation = self.generation
        if self.detached or self._committing or generation.finish is not None or not generation.output_ids:
            return
        with suppress(StepAborted, StoreError):
            await self._owner.store_detached(self.draft.record(generation, state="detached", reply=None))

    async def _generate_until_done(self) -> None:
        while True:
            await self._call_engine()
            if self.generation.finish is not None:
                await self._commit_finished()
                return
            if self._abort_reason is not None:
                await self._commit_aborted(self._abort_reason)
            await self._wait_for_retry()

    async def _call_engine(self) -> None:
        """Generate; returns early if the last subscriber left or the step was aborted."""
        if self.detached or self._abort_reason is not None:
            return
        self._engine = asyncio.get_running_loop().create_task(self._owner.generate(self.generation, self.draft))
        try:
            await self._engine
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise  # the process is going down; else only the engine's call was cancelled
        except Stalled as error:
            self._detach()
            for reader in self._readers:
                reader.failure = error
            self._wake_readers()
        finally:
            self._engine = None

    async def _wait_for_retry(self) -> None:
        if not self._owner.open:
            await self._commit_aborted("its session is closed")
        self._stored = self.draft.record(self.generation, state="detached", reply=None)
        await self._owner.store_detached(self._stored)
        try:
            async with asyncio.timeout(self._retry_window):
                await self._resumed.wait()
        except TimeoutError:
            if self.detached:  # else a retry came just then
                await self._commit_aborted("no retry came")

    async def _commit_aborted(self, reason: str) -> None:
        self._ending = True
        await self.generation.settle_rows()
        await self._commit(self.draft.record(self.generation, state="aborted", reply=None))
        raise StepAborted(reason)

    async def _commit(self, record: StepRecord) -> None:
        self._committing = True
        await self._owner.commit(self, record)
        self._stored = None

    async def _commit_finished(self) -> None:
        generation = self.generation
        await self._read_all()
        generation.text.finish()
        await generation.settle_rows()
        reply, notes = await self._owner.read_reply(self)
        record = self.draft.record(generation, state="committed", reply=reply)
        record.created_at = time.time()
        record.extra = {**record.extra, **notes}
        await self._commit(record)
        if generation.text.held is not None:
            generation.text.release(reply)
        self.result = StepResult(
            step_id=self.step_id,
            reply=reply,
            finish_reason=record.finish_reason,
            prompt_tokens=generation.request.prompt_length,
            completion_tokens=len(generation.output_ids),
            record=record,
        )

    async def _read_all(self) -> None:
        """The text of all ids. A long reply that nobody has read is decoded in slices, between which others run."""
        generation, text = self.generation, self.generation.text
        while text.stopped_at is None and len(generation.output_ids) - text.consumed > _SLICE:
            text.push(generation.output_ids[text.consumed : text.consumed + _SLICE])
            await asyncio.sleep(0)
        generation.read_text()

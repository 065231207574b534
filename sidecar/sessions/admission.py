"""From a chat request to running steps: retry, match, render, budget, start. Validates first, changes last.

Everything up to `Session.start` may fail and then leaves the session as it was. Rendering of long texts runs in
threads, two at a time at most, so that the event loop stays free.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Sequence

import orjson

from adapters.protocols.errors import RequestError, bad_field
from adapters.protocols.messages import check_messages
from adapters.protocols.request import ChatRequest
from sidecar.generation.controller import Controller
from sidecar.sessions.errors import session_full, unavailable
from sidecar.sessions.policy import Policy
from sidecar.sessions.session import Session
from sidecar.sessions.starting import Admitted, Call, Checked, Prepared, Starter
from sidecar.sessions.step_run import StepRun
from sidecar.tito.audit import audit, missing_keys
from sidecar.tito.delta import Conversation
from sidecar.tito.errors import MessageError, TemplateError
from sidecar.tito.fingerprint import digest
from sidecar.tito.model import Model
from sidecar.tito.place import Placement, Request, place
from sidecar.tito.plan import PlannedPrompt, render
from sidecar.tito.reading import Known, Reading, read
from sidecar.tito.records import Forgiven
from sidecar.tito.trajectory import Node
from sidecar.tito.wire_json import wire_json

_MOST_RENDERED = 2
"""Long prompts that are rendered and encoded at once; one processor is left to the event loop."""
_THREAD_FROM = 8192
"""Characters of new text from which rendering and encoding leave the event loop."""


class Admission:
    """Admits calls for one model."""

    def __init__(self, model: Model, controller: Controller, policy: Policy, context_window: int) -> None:
        self._model = model
        self._controller = controller
        self._policy = policy
        self._starter = Starter(model, policy, context_window)
        self._slots = asyncio.Semaphore(max(1, min(_MOST_RENDERED, (os.cpu_count() or 1) - 1)))

    def read(self, chat: ChatRequest, known: Known) -> Reading:
        """The request's messages in canonical form. Raises `RequestError` for what is wrong in any session."""
        if chat.tools and not self._model.verdict.tools:
            raise bad_field(
                "tools",
                [tool["function"]["name"] for tool in chat.tools],
                "the model's chat template prints no tools",
            )
        check_messages(known.following, known.count)
        try:
            return read(chat.template_kwargs, self._policy.rules, known)
        except MessageError as error:
            raise RequestError(400, str(error), param=error.param) from error

    async def admit(self, session: Session, call: Call, reading: Reading) -> Admitted:
        """Start, join, resume or replay; `reading` is what `read` made of the call's messages.

        Raises `RequestError`; the session is unchanged then."""
        known = self._retry(session, call)
        if known is not None:
            return known
        request = self._request(session, call.chat, reading)
        placement = place(self._model, session.trajectory, request, self._policy.rules, self._policy.modes)
        forgiven = await self._audit(session, placement)
        self._check_size(session, placement)
        prompt = await self._render(placement)
        prepared = Prepared(reading, placement, prompt, forgiven, uuid.uuid4().hex)
        checked = self._starter.check(session, call, prepared)
        admitted = self._go_on(session, call, checked) or await self._begin(session, call, checked)
        session.readings.keep(reading)
        return admitted

    def _check_size(self, session: Session, placement: Placement) -> None:
        policy, session_id = self._policy, session.session_id
        if policy.max_session_bytes is not None and session.size.stored >= policy.max_session_bytes:
            what = f"has stored {session.size.stored} bytes"
            raise session_full(session_id, what, "--max-session-bytes", policy.max_session_bytes)
        if placement.parent is not None:
            return
        roots = len(session.trajectory.roots) + sum(run.draft.parent_id is None for run in session.runs.values())
        if roots >= policy.max_roots:
            what = f"has begun {roots} conversations"
            raise session_full(session_id, what, "--max-session-roots", policy.max_roots)

    def _go_on(self, session: Session, call: Call, checked: Checked) -> Admitted | None:
        """A retry goes on with the newest call of its body that an earlier process left; where some of its choices
        are finished, they are replayed."""
        waiting = session.waiting.of_body(call.body_hash) if call.retry_count > 0 and session.open else []
        call_id = waiting[-1].call_id if waiting else None
        left = [record for record in waiting if record.call_id == call_id]
        done = [node for node in session.finished(call.body_hash) if node.record.call_id == call_id]
        if not left or len(left) + len(done) != call.chat.n or not all(map(checked.goes_on, left)):
            return None
        return self._admitted(call, checked, self._starter.start(session, call, checked, left), done)

    async def _begin(self, session: Session, call: Call, checked: Checked) -> Admitted:
        """New steps. What an earlier process left of the call that is repeated cannot be gone on from, and ends."""
        if call.retry_count > 0:
            await session.end_waiting(session.waiting.of_body(call.body_hash))
            known = self._retry(session, call)  # another retry came in while this one was rendered or waited
            if known is not None:
                return known
        if not session.open:  # it was closed in the meantime
            raise unavailable("the session is being closed", "session_closing")
        return self._admitted(call, checked, self._starter.start(session, call, checked, ()))

    @staticmethod
    def _admitted(call: Call, checked: Checked, runs: Sequence[StepRun], done: Sequence[Node] = ()) -> Admitted:
        limit, asked = checked.max_new_tokens, call.chat.max_tokens
        return Admitted(runs, done, limit if asked is not None and limit < asked else None)

    def _retry(self, session: Session, call: Call) -> Admitted | None:
        """A client library's retry joins or resumes the step it repeats, or gets its recorded reply."""
        if call.retry_count == 0:
            return None
        running = session.running(call.body_hash)[-call.chat.n :]
        if len(running) == call.chat.n:
            return Admitted(runs=running)
        finished = session.finished(call.body_hash)[-call.chat.n :]
        if len(finished) == call.chat.n:  # in the order of its choices, whichever of them was done first
            return Admitted(replayed=sorted(finished, key=lambda node: node.record.begun))
        return self._half_finished(session, call)

    @staticmethod
    def _half_finished(session: Session, call: Call) -> Admitted | None:
        """The newest call with that body of which some choices are finished and others still run or wait."""
        running = session.running(call.body_hash)
        if not running:
            return None
        call_id = running[-1].draft.call_id
        runs = [run for run in running if run.draft.call_id == call_id]
        done = [node for node in session.finished(call.body_hash) if node.record.call_id == call_id]
        return Admitted(runs=runs, replayed=done) if len(runs) + len(done) == call.chat.n else None

    @staticmethod
    def _request(session: Session, chat: ChatRequest, reading: Reading) -> Request:
        return Request(
            reading.messages,
            reading.chains,
            Conversation(chat.tools, chat.template_kwargs, session.clock),
            digest(wire_json(chat.tools, "tools", orjson.OPT_SORT_KEYS)) if chat.tools else None,
            chat.continues,
        )

    async def _audit(self, session: Session, placement: Placement) -> tuple[Forgiven, ...]:
        if placement.parent is None:
            return ()
        missing = missing_keys(placement.retold)
        blobs = await session.read_blobs(missing) if missing else {}
        return audit(placement.parent, placement.retold, blobs, self._policy.rules)

    async def _render(self, placement: Placement) -> PlannedPrompt:
        try:
            if sum(len(message.content) for message in placement.rendered) < _THREAD_FROM:
                return render(self._model, placement)
            async with self._slots:
                return await asyncio.to_thread(render, self._model, placement)
        except (MessageError, TemplateError) as error:
            raise RequestError(400, str(error), param="messages") from error

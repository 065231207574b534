"""From a chat request to running steps: retry, match, render, budget, start. Validates first, changes last.

Everything up to `Session.start` may fail and then leaves the session as it was. Rendering of long texts runs in
threads, two at a time at most, so that the event loop stays free.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from adapters.protocols.errors import RequestError, bad_field
from adapters.protocols.messages import check_messages
from adapters.protocols.request import ChatRequest
from sidecar.generation.controller import Controller
from sidecar.generation.generation import Generation, GenerationRequest
from sidecar.generation.sampling import effective_sampling, is_resumable
from sidecar.sessions.draft import StepDraft
from sidecar.sessions.errors import context_length_exceeded, unavailable
from sidecar.sessions.policy import Policy
from sidecar.sessions.session import Session
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
from sidecar.tito.routed_rows import rows_held
from sidecar.tito.trajectory import Node, ids_to_json

_MOST_RENDERED = 2
"""Long prompts that are rendered and encoded at once; one processor is left to the event loop."""
_THREAD_FROM = 8192
"""Characters of new text from which rendering and encoding leave the event loop."""


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request of an agent: the parsed body, the hash of its bytes, and its retry header.

    `intercepted_host` is where an intercepted agent meant to send it."""

    chat: ChatRequest
    body_hash: bytes
    retry_count: int
    turn_id: str | None = None
    intercepted_host: str | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """Steps that answer a call: running ones, or recorded ones that are replayed.

    `clamped_max_tokens` is the limit in force where it is below what was asked."""

    runs: Sequence[StepRun] = ()
    replayed: Sequence[Node] = ()
    clamped_max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call whose place and prompt are found. `call_id` is shared by the steps that answer it."""

    reading: Reading
    placement: Placement
    prompt: PlannedPrompt
    forgiven: tuple[Forgiven, ...]
    call_id: str


class Admission:
    """Admits calls for one model."""

    def __init__(self, model: Model, controller: Controller, policy: Policy, context_window: int) -> None:
        self._model = model
        self._controller = controller
        self._policy = policy
        self._context_window = context_window
        self._slots = asyncio.Semaphore(max(1, min(_MOST_RENDERED, (os.cpu_count() or 1) - 1)))

    def read(self, chat: ChatRequest, known: Known) -> Reading:
        """The request's messages in canonical form. Raises `RequestError` for what is wrong in any session."""
        if chat.tools and not self._model.verdict.tools:
            raise bad_field(
                "tools",
                [tool["function"]["name"] for tool in chat.tools],
                "the model's chat template prints no tools",
            )
        check_messages(chat.messages, known.count)
        try:
            return read(chat.messages, chat.template_kwargs, self._policy.rules, known)
        except MessageError as error:
            raise RequestError(400, str(error), param=error.param) from error

    async def admit(self, session: Session, call: Call, reading: Reading) -> Admitted:
        """Start, join, resume or replay; `reading` is what `read` made of the call's messages.

        Raises `RequestError`; the session is unchanged then."""
        if call.retry_count > 0:
            known = self._retry(session, call)
            if known is not None:
                return known
        request = self._request(session, call.chat, reading)
        placement = place(self._model, session.trajectory, request, self._policy.rules, self._policy.modes)
        forgiven = await self._audit(session, placement)
        if placement.parent is None and len(session.trajectory.roots) >= self._policy.max_roots:
            raise RequestError(
                400, f"session {session.session_id!r} has {self._policy.max_roots} roots; open a new one"
            )
        prompt = await self._render(placement)
        if not session.open:  # it was closed while the prompt was rendered
            raise unavailable("the session is being closed", "session_closing")
        admitted = self._start(session, call, Prepared(reading, placement, prompt, forgiven, uuid.uuid4().hex))
        session.readings.keep(reading)
        return admitted

    def _retry(self, session: Session, call: Call) -> Admitted | None:
        """A client library's retry joins or resumes the step it repeats, or gets its recorded reply."""
        running = session.running(call.body_hash)[-call.chat.n :]
        if len(running) == call.chat.n:
            return Admitted(runs=running)
        finished = session.finished(call.body_hash)[-call.chat.n :]
        if len(finished) == call.chat.n:
            return Admitted(replayed=finished)
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
            digest(orjson.dumps(chat.tools, option=orjson.OPT_SORT_KEYS)) if chat.tools else None,
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

    def _start(self, session: Session, call: Call, prepared: Prepared) -> Admitted:
        parent, prompt, chat = prepared.placement.parent, prepared.prompt, call.chat
        inherited = parent.token_count if parent is not None and prompt.segment_reason is None else 0
        length = inherited + len(prompt.context_ids)
        pin = {**self._policy.sampling_pin, **session.row.sampling}
        budget = self._budget(length, chat.max_tokens, pin.get("max_new_tokens"))
        self._check_ids(prompt)
        before = parent.ids_json() if parent is not None and inherited else []
        prompt_json = [*before, ids_to_json(prompt.context_ids)] if len(prompt.context_ids) else before
        runs = []
        for sibling in range(chat.n):
            draft = self._draft(session, call, prepared, effective_sampling(chat.sampling, pin, sibling))
            generation = Generation(
                GenerationRequest(
                    session_id=session.session_id,
                    prompt_json=prompt_json,
                    prompt_length=length,
                    sampling=draft.sampling,
                    max_new_tokens=budget,
                    stop_ids=self._model.stop_ids,
                    resumable=self._policy.partial_rollout and is_resumable(draft.sampling),
                    streaming=chat.stream,
                    instance_id=session.row.instance_id,
                    one_version=not self._policy.partial_rollout,
                    experts=self._policy.experts,
                    rows_held=rows_held(parent, self._policy.experts) if inherited and parent is not None else 0,
                ),
                session.new_text(draft),
            )
            runs.append(session.start(draft, generation, self._policy.retry_window))
        clamped = budget if chat.max_tokens is not None and budget < chat.max_tokens else None
        return Admitted(runs=runs, clamped_max_tokens=clamped)

    def _budget(self, prompt_length: int, asked: int | None, pinned: int | None) -> int:
        room = self._context_window - prompt_length
        if room < 1:
            raise context_length_exceeded(self._context_window, prompt_length, self._policy.overflow_status)
        return min(limit for limit in (room, asked, pinned, self._policy.max_output_tokens) if limit is not None)

    def _check_ids(self, prompt: PlannedPrompt) -> None:
        """An id outside the vocabulary takes a whole SGLang server down (0.5.23)."""
        ids, size = prompt.context_ids, self._model.vocab_size
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < size):
            raise RequestError(
                500,
                f"the prompt has an id outside the model's vocabulary of {size} (largest: {int(ids.max())}); "
                "--tokenizer has to be that of the served model",
                kind="server_error",
            )

    def _draft(self, session: Session, call: Call, prepared: Prepared, sampling: dict[str, object]) -> StepDraft:
        placement, prompt = prepared.placement, prepared.prompt
        request = placement.request
        appended = [(digest(data), data) for data in (message.to_json() for message in placement.new_messages)]
        blobs = dict(appended)
        if request.tools_hash is not None:
            blobs[request.tools_hash] = orjson.dumps(request.conversation.tools)
        return StepDraft(
            step_id=uuid.uuid4().hex,
            call_id=prepared.call_id,
            session_id=session.session_id,
            begun=session.tick(),
            parent_id=placement.parent.record.step_id if placement.parent is not None else None,
            prompt=prompt,
            chain=placement.chain,
            message_count=request.prompt_length,
            message_hashes=tuple(key for key, _ in appended),
            prefix=placement.prefix,
            replaced=placement.replaced,
            system_hash=placement.system_hash,
            tools_hash=request.tools_hash,
            template_kwargs=dict(request.conversation.template_kwargs),
            blobs=blobs,
            template_sha256=self._model.template_sha256,
            tokenizer_sha256=self._model.tokenizer_sha256,
            tokenizer=self._model.name,
            body_hash=call.body_hash,
            retry_count=call.retry_count,
            sampling=sampling,
            use_tools=call.chat.use_tools,
            tools=call.chat.tools or (),
            train_off_policy=self._policy.train_off_policy_sampling,
            forgiven=prepared.forgiven,
            extra=self._extra(call, prepared),
        )

    def _extra(self, call: Call, prepared: Prepared) -> dict[str, object]:
        extra = {
            "turn_id": call.turn_id,
            "intercepted_host": call.intercepted_host,
            "ignored": list(call.chat.ignored),
            "protected": prepared.prompt.protected,
            "stripped": prepared.reading.stripped,
            **self._policy.modes.recorded(),
        }
        return {key: value for key, value in extra.items() if value}

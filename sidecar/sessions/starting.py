"""From a call whose prompt is ready to running steps: budget, checks, drafts. Changes nothing before all of it is
checked, and awaits nothing, so that what was looked at still holds.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from adapters.protocols.errors import RequestError
from adapters.protocols.request import ChatRequest
from sidecar.generation.generation import Generation, GenerationRequest
from sidecar.generation.sampling import effective_sampling, is_resumable
from sidecar.sessions.draft import StepDraft
from sidecar.sessions.errors import context_length_exceeded
from sidecar.sessions.policy import Policy
from sidecar.sessions.session import Session
from sidecar.sessions.step_run import StepRun
from sidecar.tito.fingerprint import digest
from sidecar.tito.model import Model
from sidecar.tito.place import Placement
from sidecar.tito.plan import PlannedPrompt
from sidecar.tito.reading import Reading
from sidecar.tito.records import Forgiven, StepRecord
from sidecar.tito.routed_rows import rows_held
from sidecar.tito.trajectory import Node, ids_to_json


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


@dataclass(frozen=True, slots=True)
class Checked:
    """A prepared call that can be sampled. `samplings` are the effective parameters, one for each choice;
    `inherited` counts the tokens of earlier steps before the prompt's own ids."""

    prepared: Prepared
    inherited: int
    max_new_tokens: int
    samplings: Sequence[dict[str, Any]]

    def goes_on(self, record: StepRecord) -> bool:
        """The step that an earlier process left is one of this call's: the same ids would be sent for it, to be
        sampled alike. Settings, the model's files or the session may have changed since."""
        prompt, parent = self.prepared.prompt, self.prepared.placement.parent
        return (
            record.parent_id == (parent.record.step_id if parent is not None else None)
            and record.segment_reason == prompt.segment_reason
            and np.array_equal(record.context_ids, prompt.context_ids)
            and record.prefix == self.prepared.placement.prefix
            and any(
                _same_json(record.sampling, {**sampling, "max_new_tokens": self.max_new_tokens})
                for sampling in self.samplings
            )
        )


class Starter:
    """Starts the steps of one model's calls."""

    def __init__(self, model: Model, policy: Policy, context_window: int) -> None:
        self._model = model
        self._policy = policy
        self._context_window = context_window

    def check(self, session: Session, call: Call, prepared: Prepared) -> Checked:
        """Budget and ids. Raises `RequestError`."""
        parent, prompt, chat = prepared.placement.parent, prepared.prompt, call.chat
        inherited = parent.token_count if parent is not None and prompt.segment_reason is None else 0
        pin = {**self._policy.sampling_pin, **session.row.sampling}
        budget = self._budget(inherited + len(prompt.context_ids), chat.max_tokens, pin.get("max_new_tokens"))
        self._check_ids(prompt)
        samplings = [effective_sampling(chat.sampling, pin, sibling) for sibling in range(chat.n)]
        return Checked(prepared, inherited, budget, samplings)

    def start(self, session: Session, call: Call, checked: Checked, left: Sequence[StepRecord]) -> list[StepRun]:
        """Run the call's steps, or go on with those that an earlier process `left`."""
        prompt_json = self._prompt_json(checked)
        if not left:
            drafts = [self._draft(session, call, checked.prepared, sampling) for sampling in checked.samplings]
            return [self._run(session, call, checked, prompt_json, draft) for draft in drafts]
        runs = []
        for record in left:
            sampling = {name: value for name, value in record.sampling.items() if name != "max_new_tokens"}
            draft = replace(
                self._draft(session, call, checked.prepared, sampling),
                step_id=record.step_id,
                call_id=record.call_id,
                begun=record.begun,
                retry_count=record.retry_count,
                extra=record.extra,
            )
            runs.append(self._run(session, call, checked, prompt_json, draft, record))
        return runs

    @staticmethod
    def _prompt_json(checked: Checked) -> list[bytes]:
        parent, ids = checked.prepared.placement.parent, checked.prepared.prompt.context_ids
        before = parent.ids_json() if parent is not None and checked.inherited else []
        return [*before, ids_to_json(ids)] if len(ids) else before

    def _run(
        self,
        session: Session,
        call: Call,
        checked: Checked,
        prompt_json: list[bytes],
        draft: StepDraft,
        left: StepRecord | None = None,
    ) -> StepRun:
        parent, experts = checked.prepared.placement.parent, self._policy.experts
        generation = Generation(
            GenerationRequest(
                session_id=session.session_id,
                prompt_json=prompt_json,
                prompt_length=checked.inherited + len(draft.prompt.context_ids),
                sampling=draft.sampling,
                max_new_tokens=checked.max_new_tokens,
                stop_ids=self._model.stop_ids,
                resumable=self._policy.partial_rollout and is_resumable(draft.sampling),
                streaming=call.chat.stream,
                instance_id=session.row.instance_id,
                one_version=not self._policy.partial_rollout,
                experts=experts,
                rows_held=rows_held(parent, experts) if checked.inherited and parent is not None else 0,
            ),
            session.new_text(draft),
        )
        if left is not None:
            generation.take_over(left.output_ids.tolist(), left.output_logprobs.tolist(), left.version_spans)
        return session.start(draft, generation, self._policy.retry_window, left)

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


def _same_json(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """One of them may have been stored."""
    return orjson.dumps(one, option=orjson.OPT_SORT_KEYS) == orjson.dumps(other, option=orjson.OPT_SORT_KEYS)

"""What is known of a step when it is admitted; with its tokens it becomes the record that is stored. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adapters.models.reply import Reply
from adapters.protocols.chat_replies import message as wire_message
from sidecar.generation.generation import Generation
from sidecar.generation.sampling import is_off_policy
from sidecar.tito.continuation import with_prefix
from sidecar.tito.fingerprint import Chain, extend_chain
from sidecar.tito.messages import from_wire
from sidecar.tito.plan import PlannedPrompt
from sidecar.tito.records import Forgiven, StepRecord, StepState


@dataclass(frozen=True, slots=True)
class StepDraft:
    """An admitted step: everything of its record but the tokens.

    `blobs` are the messages and tools that the record refers to by hash."""

    step_id: str
    call_id: str
    session_id: str
    begun: int
    parent_id: str | None
    prompt: PlannedPrompt
    chain: Chain
    message_count: int
    message_hashes: tuple[bytes, ...]
    prefix: bytes
    replaced: tuple[str, ...]
    system_hash: bytes
    tools_hash: bytes | None
    template_kwargs: dict[str, Any]
    blobs: dict[bytes, bytes]
    template_sha256: str
    tokenizer_sha256: str
    tokenizer: str
    body_hash: bytes
    retry_count: int
    sampling: dict[str, Any]
    use_tools: bool
    train_off_policy: bool
    tools: Sequence[Mapping[str, Any]] = ()
    """The request's, by which the arguments of its calls are typed."""
    forgiven: tuple[Forgiven, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def record(self, generation: Generation, *, state: StepState, reply: Reply | None) -> StepRecord:
        """The step with the tokens sampled so far; `reply` is None unless the step is complete."""
        before = after = self.chain
        reply_json = b""
        if reply is not None:
            answer = with_prefix(self.prefix, from_wire(wire_message(reply), "reply"))
            after, reply_json = extend_chain(before, answer), answer.to_json()
        finish = generation.finish
        last = generation.output_ids[-1] if generation.output_ids else None
        stopped = finish is not None and finish.kind == "stop" and last in generation.request.stop_ids
        return StepRecord(
            step_id=self.step_id,
            session_id=self.session_id,
            begun=self.begun,
            sequence=None,
            parent_id=self.parent_id,
            segment_reason=self.prompt.segment_reason,
            context_ids=self.prompt.context_ids,
            output_ids=np.asarray(generation.output_ids, dtype=np.int32),
            output_logprobs=np.asarray(generation.logprobs, dtype=np.float32),
            version_spans=tuple(generation.spans),
            finish_reason=_finish_reason(generation, reply),
            stop_id=last if stopped else None,
            message_hashes=self.message_hashes,
            reply=reply_json,
            prompt_chain=before.lenient,
            prompt_exact_chain=before.exact,
            chain=after.lenient,
            exact_chain=after.exact,
            message_count=self.message_count + (reply is not None),
            system_hash=self.system_hash,
            tools_hash=self.tools_hash,
            template_sha256=self.template_sha256,
            tokenizer_sha256=self.tokenizer_sha256,
            tokenizer=self.tokenizer,
            call_id=self.call_id,
            body_hash=self.body_hash,
            retry_count=self.retry_count,
            sampling={**self.sampling, "max_new_tokens": generation.request.max_new_tokens},
            state=state,
            delivered=False,
            untrainable=self._untrainable(generation),
            routed_rows=generation.routed_rows() if state != "detached" else None,
            prefix=self.prefix,
            replaced=self.replaced,
            template_kwargs=self.template_kwargs,
            forgiven=self.forgiven,
            break_reason=self.prompt.break_reason,
            created_at=time.time(),
            extra=self.extra,
        )

    def _untrainable(self, generation: Generation) -> str | None:
        if is_off_policy(self.sampling) and not self.train_off_policy:
            return "off_policy_sampling"
        return "replay_rows" if generation.rows_missing() is not None else None


def _finish_reason(generation: Generation, reply: Reply | None) -> str:
    if reply is None or generation.finish is None:
        return "aborted"
    if generation.finish.kind == "length":
        return "length"  # also after complete calls: the reply was cut
    return "tool_calls" if reply.calls else "stop"

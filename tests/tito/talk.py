"""A conversation over `sidecar.tito` alone: place, render, sample what the test says, add the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from adapters.models.reply import Reply, join
from adapters.protocols.chat_replies import message as wire_message
from sidecar.tito.audit import audit
from sidecar.tito.continuation import with_prefix
from sidecar.tito.fingerprint import LENIENT, MatchRules, digest, extend_chain
from sidecar.tito.messages import from_wire
from sidecar.tito.model import Model
from sidecar.tito.modes import DEFAULT_MODES, BuildModes
from sidecar.tito.place import Placement, Request, place
from sidecar.tito.plan import PlannedPrompt, render
from sidecar.tito.reading import Readings, read
from sidecar.tito.records import Forgiven, VersionSpan
from sidecar.tito.trajectory import Node, Trajectory
from tests.tito.builders import conversation, step


class Talk:
    """`wire` grows by what the client sends and by the replies it got, as an agent's own history does."""

    def __init__(
        self,
        model: Model,
        *,
        rules: MatchRules = LENIENT,
        modes: BuildModes = DEFAULT_MODES,
    ) -> None:
        self.model = model
        self.rules = rules
        self.modes = modes
        self.trajectory = Trajectory()
        self.readings = Readings()
        self.wire: list[dict[str, Any]] = []
        self.blobs: dict[bytes, bytes] = {}
        self.placement: Placement
        self.forgiven: tuple[Forgiven, ...] = ()
        self.prompt: PlannedPrompt
        self.reply: Reply

    def ask(
        self,
        *new: dict[str, Any],
        tools: list[dict[str, Any]] | None = None,
        continues: bool = False,
        **template_kwargs: Any,
    ) -> PlannedPrompt:
        """A request with the history so far and `new` messages; what would be sent for it. `continues`: the reply
        goes on with the last message."""
        self.wire += new
        known = self.readings.find(self.wire, template_kwargs)
        reading = read(template_kwargs, self.rules, known)
        self.readings.keep(reading)
        request = Request(
            reading.messages,
            reading.chains,
            conversation(tools, **template_kwargs),
            digest(orjson.dumps(tools)) if tools else None,
            continues,
        )
        placement = self.placement = place(self.model, self.trajectory, request, self.rules, self.modes)
        if placement.parent is not None:
            self.forgiven = audit(placement.parent, placement.retold, self.blobs, self.rules)
        self.prompt = render(self.model, self.placement)
        return self.prompt

    def answer(self, sampled: str | Sequence[int], **changes: Any) -> Node:
        """The policy's reply to the last request, as text or ids; its stop id included if there is one."""
        model, placement = self.model, self.placement
        ids = model.codec.encode(sampled).tolist() if isinstance(sampled, str) else list(sampled)
        number = len(self.trajectory)
        text = model.reply_text(self.prompt.tail, True, (), lambda n: f"call_{number}_{n}")
        text.push(ids)
        text.finish()
        self.reply = join(text.deltas)
        message = wire_message(self.reply)
        stored = with_prefix(placement.prefix, from_wire(message, "reply"))
        told = [one.to_json() for one in placement.new_messages]
        self.blobs |= {digest(data): data for data in told}
        chain = extend_chain(placement.chain, stored)
        stopped = ids[-1] if ids[-1] in model.stop_ids else None
        values: dict[str, Any] = {
            "sequence": number,
            "segment_reason": self.prompt.segment_reason,
            "context_ids": self.prompt.context_ids,
            "output_ids": ids,
            "version_spans": (VersionSpan(0, len(ids), "v1"),),
            "finish_reason": "stop" if stopped is not None else "length",
            "stop_id": stopped,
            "message_count": placement.request.prompt_length + 1,
            "message_hashes": tuple(map(digest, told)),
            "prefix": placement.prefix,
            "replaced": placement.replaced,
            "template_kwargs": dict(placement.request.conversation.template_kwargs),
            "reply": stored.to_json(),
            "prompt_chain": placement.chain.lenient,
            "prompt_exact_chain": placement.chain.exact,
            "chain": chain.lenient,
            "exact_chain": chain.exact,
            "system_hash": placement.system_hash,
            "tools_hash": placement.request.tools_hash,
            "template_sha256": model.template_sha256,
            "tokenizer_sha256": model.tokenizer_sha256,
            "tokenizer": model.name,
            "forgiven": self.forgiven,
            "break_reason": self.prompt.break_reason,
        }
        parent = placement.parent.record.step_id if placement.parent is not None else None
        if placement.prefix:
            self.wire.pop()
        self.wire.append(stored.for_template(arguments_as_text=True) if placement.prefix else message)
        return self.trajectory.add(step(f"step{number}", parent, **(values | changes)))

    def sent_ids(self) -> list[int]:
        """The whole prompt of the last request."""
        own = self.prompt.context_ids.tolist()
        if self.prompt.segment_reason is not None:
            return own
        assert self.placement.parent is not None
        return [*self.placement.parent.token_ids().tolist(), *own]

    def sent(self) -> str:
        """Text of the whole prompt of the last request."""
        return self.model.codec.decode(self.sent_ids())

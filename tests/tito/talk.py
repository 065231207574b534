"""A conversation over `sidecar.tito` alone: place, render, sample what the test says, add the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import orjson

from adapters.models.reply import Reply, join
from adapters.protocols.chat_replies import message as wire_message
from sidecar.tito.fingerprint import digest, extend_chain
from sidecar.tito.messages import from_wire, normalise
from sidecar.tito.model import Model
from sidecar.tito.plan import Placement, PlannedPrompt, Request, place, render
from sidecar.tito.records import VersionSpan
from sidecar.tito.trajectory import Node, Trajectory
from tests.tito.builders import conversation, step


class Talk:
    """`wire` grows by what the client sends and by the replies it got, as an agent's own history does."""

    def __init__(self, model: Model, *, match: Literal["lenient", "exact"] = "lenient") -> None:
        self.model = model
        self.match = match
        self.trajectory = Trajectory()
        self.wire: list[dict[str, Any]] = []
        self.placement: Placement
        self.prompt: PlannedPrompt
        self.reply: Reply

    def ask(
        self, *new: dict[str, Any], tools: list[dict[str, Any]] | None = None, **template_kwargs: Any
    ) -> PlannedPrompt:
        """A request with the history so far and `new` messages; what would be sent for it."""
        self.wire += new
        request = Request(
            normalise(self.wire),
            conversation(tools, **template_kwargs),
            digest(orjson.dumps(tools)) if tools else None,
        )
        self.placement = place(self.model, self.trajectory, request, self.match)
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
        stored = from_wire(message, "reply")
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
            "reply": stored.to_json(),
            "chain": chain.lenient,
            "exact_chain": chain.exact,
            "system_hash": placement.system_hash,
            "tools_hash": placement.request.tools_hash,
            "template_sha256": model.template_sha256,
            "forgiven": placement.forgiven,
            "break_reason": self.prompt.break_reason,
        }
        parent = placement.parent.record.step_id if placement.parent is not None else None
        self.wire.append(message)
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

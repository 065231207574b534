"""A recorded step read like a running one: a marked retry gets the reply that was made already."""

from __future__ import annotations

import asyncio
from typing import Protocol

from adapters.models.reply import Delta, Reply, ToolCall, spread
from sidecar.sessions.step_run import StepResult
from sidecar.tito.continuation import without_prefix
from sidecar.tito.messages import Message
from sidecar.tito.trajectory import Node


class Reader(Protocol):
    """What a response needs of a step, running (`StepReader`) or recorded (`ReplayReader`)."""

    @property
    def result(self) -> StepResult | None:
        """The committed step; None while it runs. Raises what ended it otherwise."""

    @property
    def sampled(self) -> bool:
        """At least one token exists."""

    def read(self) -> list[Delta]:
        """What is new."""

    def close(self) -> None:
        """Stop following."""


class ReplayReader:
    """All of a recorded reply at once."""

    def __init__(self, node: Node, wake: asyncio.Event) -> None:
        record = node.record
        message = without_prefix(record.prefix, Message.from_json(record.reply))
        reply = Reply(
            content=message.content,
            reasoning=message.reasoning or "",
            calls=tuple(ToolCall(call.id, call.name, call.arguments) for call in message.calls),
        )
        self.result: StepResult | None = StepResult(
            step_id=record.step_id,
            reply=reply,
            finish_reason=record.finish_reason,
            prompt_tokens=node.token_count - len(record.output_ids),
            completion_tokens=len(record.output_ids),
            record=record,
        )
        self.sampled = True
        self._deltas = spread(reply)
        wake.set()

    def read(self) -> list[Delta]:
        """Everything, once."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def close(self) -> None:
        """Nothing to stop."""

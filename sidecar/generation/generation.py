"""The tokens of one step while they are being sampled: filled by the controller, read by whoever follows.

Ids are only ever appended; `restart` is the one exception, for samplers with state of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapters.engines.base import Finish, ReportedVersions
from sidecar.tito.records import UNKNOWN_VERSION, VersionSpan
from sidecar.tito.reply_text import ReplyText
from sidecar.tito.trajectory import join_ids_json


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to sample. `prompt_json` is the prompt's ids as JSON without brackets."""

    session_id: str
    prompt_json: bytes
    prompt_length: int
    sampling: Mapping[str, Any]
    max_new_tokens: int
    stop_ids: frozenset[int]
    resumable: bool
    """The sampler has no state beyond the ids; else a preempted reply starts over."""
    streaming: bool
    """Somebody reads it as it comes: decides how often a cumulative engine reports."""


class Generation:
    """One step's sampled tokens. `text` turns them into what the agent sees, on demand."""

    def __init__(self, request: GenerationRequest, text: ReplyText) -> None:
        self.request = request
        self.text = text
        self.listeners: set[asyncio.Event] = set()
        """Set whenever there is something new to read."""
        self.output_ids: list[int] = []
        self.logprobs: list[float] = []
        self.spans: list[VersionSpan] = []
        self.finish: Finish | None = None
        self.preemptions = 0

    @property
    def budget(self) -> int:
        """Tokens that may still be sampled."""
        return self.request.max_new_tokens - len(self.output_ids)

    def input_ids_json(self) -> bytes:
        """Prompt and what was sampled so far."""
        return join_ids_json(self.request.prompt_json, ",".join(map(str, self.output_ids)).encode())

    def append(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Newly sampled tokens. A stop string of the client's ends the reply at the id that completes it."""
        self.output_ids.extend(ids)
        self.logprobs.extend(logprobs)
        if self.request.sampling.get("stop"):
            self.read_text()
        self.notify()

    def notify(self) -> None:
        """Wake everybody who follows."""
        for listener in self.listeners:
            listener.set()

    def read_text(self) -> None:
        """Bring `text` up to date, and cut at a completed stop string."""
        self.text.push(self.output_ids[self.text.consumed :])
        if self.text.stopped_at is not None and self.finish is None:
            del self.output_ids[self.text.stopped_at :], self.logprobs[self.text.stopped_at :]
            self.finish = Finish("stop", matched="")

    def stamp(self, start: int, versions: ReportedVersions) -> None:
        """Name the weights that sampled `output_ids[start:]`."""
        end = len(self.output_ids)
        spans = versions.spans or ((0, end - start, versions.single or UNKNOWN_VERSION),)
        for first, last, version in spans:
            self._add_span(start + first, min(start + last, end), version)

    def _add_span(self, start: int, end: int, version: str) -> None:
        if start >= end:
            return
        if self.spans and self.spans[-1].version == version:
            start = self.spans.pop().start
        self.spans.append(VersionSpan(start, end, version))

    def settle(self) -> bool:
        """Finish a preempted reply that is complete in fact: it ends in a stop id or has no budget left."""
        if self.finish is None and self.output_ids and self.output_ids[-1] in self.request.stop_ids:
            self.finish = Finish("stop", matched=self.output_ids[-1])
        elif self.finish is None and self.budget <= 0:
            self.finish = Finish("length")
        return self.finish is not None

    def restart(self, text: ReplyText) -> None:
        """Forget what was sampled: the sampler cannot go on from ids alone. Nobody may have read any of it."""
        self.text = text
        self.output_ids, self.logprobs, self.spans = [], [], []

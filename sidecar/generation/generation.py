"""The tokens of one step while they are being sampled: filled by the controller, read by whoever follows.

Ids are only ever appended; `restart` is the one exception, for samplers with state of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapters.engines.base import Finish, ReportedVersions
from adapters.engines.routed_experts import ExpertShape, RoutedReply
from sidecar.generation.gate import Scopes, call_scopes
from sidecar.generation.held_rows import HeldRows
from sidecar.tito.records import UNKNOWN_VERSION, RoutedRows, VersionSpan
from sidecar.tito.reply_text import ReplyText


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to sample. `prompt_json` is the prompt's ids as JSON without brackets, in runs."""

    session_id: str
    prompt_json: Sequence[bytes]
    prompt_length: int
    sampling: Mapping[str, Any]
    max_new_tokens: int
    stop_ids: frozenset[int]
    resumable: bool
    """A preempted reply goes on from its ids; else it starts over, and nobody may see it before it is complete."""
    streaming: bool
    """Somebody reads it as it comes: decides how often a cumulative engine reports."""
    one_version: bool = False
    """One weight version samples all of it: a reply inside which the version changed starts over."""
    experts: ExpertShape | None = None
    """With routing replay: the shape of the rows that the engine is asked for."""
    rows_held: int = 0
    """Rows that the earlier steps of its segment hold."""
    instance_id: str | None = None
    """The session's instance: pauses may name it."""

    @property
    def scopes(self) -> Scopes:
        """The scopes of pauses that cover this call."""
        return call_scopes(self.session_id, self.instance_id)


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
        self.rows = HeldRows(request.experts, request.rows_held) if request.experts is not None else None
        """Which experts processed its tokens; None without routing replay."""
        self._mixed = False

    def take_over(self, ids: Sequence[int], logprobs: Sequence[float], spans: Sequence[VersionSpan]) -> None:
        """Begin with what an earlier process sampled of this step; the next engine call brings the rows of it."""
        self.output_ids, self.logprobs, self.spans = list(ids), list(logprobs), list(spans)

    @property
    def budget(self) -> int:
        """Tokens that may still be sampled."""
        return self.request.max_new_tokens - len(self.output_ids)

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Sampling parameters of the next engine call: what was sampled counts towards `min_new_tokens`, which
        SGLang refuses above the budget."""
        sampling = self.request.sampling
        if not sampling.get("min_new_tokens"):
            return sampling
        missing = max(0, sampling["min_new_tokens"] - len(self.output_ids))
        return {**sampling, "min_new_tokens": min(missing, self.budget)}

    def input_ids_json(self) -> Sequence[bytes]:
        """Prompt and what was sampled so far, in runs."""
        sampled = ",".join(map(str, self.output_ids)).encode()
        return [*self.request.prompt_json, sampled] if sampled else self.request.prompt_json

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

    def stamp(self, start: int, versions: ReportedVersions, *, changed: bool = False) -> None:
        """Name the weights that sampled `output_ids[start:]`; `changed`: possibly several."""
        end = len(self.output_ids)
        self._mixed = self._mixed or changed
        spans = versions.spans or ((0, end - start, versions.single or UNKNOWN_VERSION),)
        for first, last, version in spans:
            self._add_span(start + first, min(start + last, end), version)

    def rows_came(self, reply: RoutedReply | None, start: int) -> None:
        """Rows of an engine call that began with `start` sampled ids, after its tokens were stamped."""
        if self.rows is not None and reply is not None:
            prompt = self.request.prompt_length
            self.rows.offer(reply, prompt=prompt, before=prompt + start, kept=self._tokens, spans=self.spans)

    async def settle_rows(self) -> None:
        """Make the rows that came ready; idempotent."""
        if self.rows is not None:
            await self.rows.settle()

    def rows_missing(self) -> str | None:
        """Why its segment lacks rows that routing replay needs; None if it has them, or without routing replay."""
        return self.rows.missing(self._tokens) if self.rows is not None else None

    def routed_rows(self) -> RoutedRows | None:
        """The rows to store with the step."""
        return self.rows.summary(self._tokens) if self.rows is not None else None

    @property
    def _tokens(self) -> int:
        return self.request.prompt_length + len(self.output_ids)

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

    @property
    def must_restart(self) -> bool:
        """Several versions sampled what only one may sample."""
        return self.request.one_version and self._mixed

    def restart(self, text: ReplyText) -> None:
        """Forget what was sampled: it cannot be gone on from. Nobody may have read any of it."""
        self.text = text
        self.output_ids, self.logprobs, self.spans = [], [], []
        self.finish, self._mixed = None, False
        if self.rows is not None:
            self.rows.clear()

"""One request's generation: what was sampled so far, under which versions, and how it ended.

Promise: ids, logprobs and versions always have equal lengths; `finish` is set once and nothing is added after
it; the rules of ending and their order are those of SGLang 0.5.23. Concurrency: one event loop; the engine
writes, one reader waits.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from sidecar.local_engine.reply_text import ReplyText, TokenTable
from sidecar.local_engine.sampling import SamplingParams


@dataclass(frozen=True)
class GenerateRequest:
    """A checked /generate request. `max_new_tokens` fits the context."""

    rid: str
    input_ids: tuple[int, ...]
    params: SamplingParams
    max_new_tokens: int
    stream: bool
    return_logprob: bool
    return_text_in_logprobs: bool
    return_prompt_token_ids: bool


@dataclass
class VersionSpan:
    """Tokens [start, end) of the output were sampled under `version`."""

    version: str
    start: int
    end: int


class Generation:
    """The growing result of one request."""

    def __init__(self, request: GenerateRequest, table: TokenTable, eos_token_id: int, version: str) -> None:
        self.request = request
        self.output_ids: list[int] = []
        self.logprobs: list[float] = []
        self.spans: list[VersionSpan] = []
        self.version = version  # of the last sampled token
        self.text = ReplyText(table, request.params.stop, request.params.skip_special_tokens)
        self.cached_tokens = 0
        self.num_retractions = 0
        self.admitted = False  # False until it first holds a slot, as in SGLang's waiting queue
        self.finish: dict[str, Any] | None = None
        self.started = time.monotonic()
        self.stop_ids = frozenset() if request.params.ignore_eos else request.params.stop_token_ids | {eos_token_id}
        self._changed = asyncio.Event()
        if request.max_new_tokens == 0:
            self._end({"type": "length", "length": 0})

    def accept(self, token_id: int, logprob: float, version: str) -> None:
        """Add one sampled token; ends the generation when a rule says so."""
        self.output_ids.append(token_id)
        self.logprobs.append(logprob)
        self._stamp(version)
        # The limit comes first in SGLang: an end-of-turn token that is also the last allowed is "length".
        if len(self.output_ids) == self.request.max_new_tokens:
            self.text.append(token_id)
            self._end({"type": "length", "length": len(self.output_ids)})
        elif token_id in self.stop_ids:
            if self.request.params.no_stop_trim:
                self.text.append(token_id)
            self._end({"type": "stop", "matched": token_id})
        elif matched := self.text.append(token_id):
            trim_from = None if self.request.params.no_stop_trim else matched
            self._end({"type": "stop", "matched": matched}, trim_from)
        else:
            self._changed.set()

    def end_full(self) -> None:
        """End because llama.cpp's context is full."""
        self._end({"type": "length", "length": len(self.output_ids)})

    def abort(self) -> None:
        """End as an aborted request; what was sampled stays."""
        if not self.admitted:
            self._end({"type": "abort", "message": "Abort in waiting queue"})
        else:
            self._end({"type": "abort", "message": "Aborted", "status_code": None, "err_type": None})

    def fail(self, message: str) -> None:
        """End as a fault of the engine, which SGLang delivers as an abort with a status code."""
        self._end({"type": "abort", "message": message, "status_code": 500, "err_type": "InternalServerError"})

    async def wait_for(self, count: int) -> None:
        """Return when at least `count` tokens are there or the generation has ended. For one reader only."""
        while self.finish is None and len(self.output_ids) < count:
            self._changed.clear()
            await self._changed.wait()

    async def wait_end(self) -> None:
        while self.finish is None:
            self._changed.clear()
            await self._changed.wait()

    def _stamp(self, version: str) -> None:
        self.version = version
        count = len(self.output_ids)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1].end = count
        else:
            self.spans.append(VersionSpan(version, count - 1, count))

    def _end(self, finish: dict[str, Any], trim_from: str | None = None) -> None:
        if self.finish is None:
            self.finish = finish
            self.text.close(trim_from)
            self._changed.set()

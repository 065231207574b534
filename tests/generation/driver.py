"""The generation controller without a sidecar around it: engine, transport, gate, and generations to run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.generation.controller import Controller, Limits
from sidecar.generation.gate import SCOPE_ALL, Gate, Pause
from sidecar.generation.generation import Generation, GenerationRequest
from sidecar.generation.sampling import is_resumable
from sidecar.generation.transport import EngineTransport
from sidecar.tito.model import Model
from sidecar.tito.reply_text import ReplyText
from tests.fake_sglang import FakeSGLang, RecordedRequest, Reply
from tests.support.running import engine_for, model_of
from tests.support.waiting import LIVENESS, until

PROMPT = (100, 101, 102)
TEXT = "one two three four five six seven eight nine ten"


@dataclass
class Driver:
    """`run` drives a generation to its end; `replies` are scripted with the engine."""

    engine: FakeSGLang
    controller: Controller
    gate: Gate
    model: Model
    coalesce: bool = False
    fresh: list[ReplyText] = field(default_factory=list)
    """Texts that were made anew for generations that started over."""

    @property
    def requests(self) -> list[RecordedRequest]:
        """What the engine was asked."""
        return self.engine.requests

    def says(self, text: str = TEXT, **options: Any) -> list[int]:
        """Script a reply; the ids it will have, stop id included."""
        options = {"chunk_tokens": 1, "coalesce": self.coalesce, **options}
        self.engine.replies.append(Reply(text=text, **options))
        stop = [] if options.get("finish") == "length" else list(self.engine.vocabulary.eos_token_ids)
        return self.engine.vocabulary.encode(text) + stop

    def text(self, stop: Sequence[str] = ()) -> ReplyText:
        """A fresh pipeline."""
        return self.model.reply_text("", False, stop, str)

    def generation(
        self, max_new_tokens: int = 100, *, streaming: bool = True, one_version: bool = False, **sampling: Any
    ) -> Generation:
        """A generation that was not begun; `one_version` as without `--partial-rollout`."""
        request = GenerationRequest(
            session_id="s",
            prompt_json=[",".join(map(str, PROMPT)).encode()],
            prompt_length=len(PROMPT),
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            stop_ids=self.model.stop_ids,
            resumable=is_resumable(sampling) and not one_version,
            streaming=streaming,
            one_version=one_version,
        )
        return Generation(request, self.text(sampling.get("stop") or ()))

    async def run(self, generation: Generation | None = None) -> Generation:
        """To its end."""
        generation = generation or self.generation()

        def fresh() -> ReplyText:
            self.fresh.append(self.text(generation.request.sampling.get("stop") or ()))
            return self.fresh[-1]

        async with asyncio.timeout(LIVENESS):
            await self.controller.run(generation, fresh)
        return generation

    def start(self, generation: Generation | None = None) -> asyncio.Task[Generation]:
        """Run in the background."""
        return asyncio.ensure_future(self.run(generation))

    async def at_hold(self, index: int = 0, after: int = 3) -> RecordedRequest:
        """Until the request at `index` has generated `after` ids."""
        request = (await self.engine.wait_requests(index + 1))[index]
        await self.engine.wait_tokens(request, after)
        return request

    async def in_queue(self) -> None:
        """Until the engine's scheduler has put the request into its waiting queue."""
        active = self.engine.intake.active
        await until(lambda: any(one.plan.queue_met for one in active.values()), "a request in the queue")

    async def abort_active(self, timeout: float, scope: str = SCOPE_ALL) -> tuple[list[str], list[str]]:
        """Abort what is in flight in a scope, as a pause does: the rids that ended, and those that still run."""
        active = self.controller.active
        rids = active.of(scope)
        await active.abort(rids, timeout, lambda: True)
        failed = set(active.still(rids))
        return [rid for rid in rids if rid not in failed], [rid for rid in rids if rid in failed]

    def abort_all(self) -> None:
        """As a stranger does it, not through the controller."""
        self.engine.state.abort(abort_all=True)

    def assert_pieces(self, generation: Generation, expected: Sequence[int]) -> None:
        """The ids are those of the reply, the logprobs the engine's own for them, and each request sent the prompt
        and everything that was known; nothing was sampled twice or lost."""
        assert generation.output_ids == list(expected)
        assert len(generation.logprobs) == len(generation.output_ids)
        known: list[int] = []
        for request in self.requests:
            assert request.input_ids == [*PROMPT, *known]
            kept = next(
                (other.input_ids for other in self.requests[self.requests.index(request) + 1 :]),
                [*PROMPT, *expected],
            )[len(PROMPT) + len(known) :]
            assert kept == request.output_ids[: len(kept)]
            assert generation.logprobs[len(known) : len(known) + len(kept)] == request.output_logprobs[: len(kept)]
            known += kept
        assert known == list(expected)
        assert [span.start for span in generation.spans] == [0, *(span.end for span in generation.spans)][:-1]
        assert generation.spans[-1].end == len(expected)


@asynccontextmanager
async def driving(
    directory: Path, *, limits: Limits | None = None, silence: float = 30, **options: Any
) -> AsyncIterator[Driver]:
    """A driver; `options` are the engine's."""
    expired: list[Pause] = []
    gate = Gate(expired.append)
    async with engine_for(directory, **options) as engine:
        transport = EngineTransport(engine.url, None, None, silence)
        await transport.start()
        try:
            yield Driver(engine, Controller(transport, gate, limits or Limits()), gate, model_of(directory))
        finally:
            gate.close()
            await transport.close()

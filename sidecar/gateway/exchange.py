"""One admitted call, as those who write its reply see it. Values and look-ups; nothing is sent here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from adapters.protocols.chat_replies import Head
from sidecar.gateway.replay import Reader
from sidecar.sessions.session import Session
from sidecar.sessions.step_run import StepResult
from sidecar.tito.codec import Codec


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: between signs of life, and until a blocked reader counts as gone."""

    heartbeat: float
    slow_reader: float
    json_keepalive: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """One admitted call: its readers (one per choice) and what its reply says besides."""

    session: Session
    readers: Sequence[Reader]
    wake: asyncio.Event
    head: Head
    headers: dict[str, str]
    include_usage: bool
    logprobs: bool
    codec: Codec
    pace: Pace

    def token_logprobs(self, result: StepResult) -> list[tuple[str, float]] | None:
        """`(text, logprob)` of the sampled tokens, if they were asked for. None too for a reply from before a
        restart with another tokenizer: nothing here tells which text such a token is."""
        record = result.record
        if not self.logprobs or record.tokenizer_sha256 != self.codec.sha256:
            return None
        texts = [self.codec.decode([index]) for index in record.output_ids.tolist()]
        return list(zip(texts, record.output_logprobs.tolist(), strict=True))

    async def wait(self) -> None:
        """Until there is something new, or a heartbeat is due."""
        await self.wake.wait()
        self.wake.clear()

"""Asks the engine's own parsers about complete replies, and counts. One event loop.

A question is asked once: where it fails, the text stays content, and the step goes on. So the caller decides what
an error means; nothing is tried again here.
"""

from __future__ import annotations

import asyncio
import logging

from adapters.engines.base import EngineError, EngineUnreachable
from adapters.engines.sglang_parsers import endpoint_of, parse_body, probe, read_answer
from adapters.models.engine_parser import Answer, EngineParser, Question
from sidecar.generation.workers import Workers

log = logging.getLogger(__name__)

_ASK_AGAIN = 1.0
"""Seconds."""


class EngineParsing:
    """`asked` and `failed` count questions about replies."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.asked = 0
        self.failed = 0

    async def ask(self, question: Question) -> Answer:
        """The engine's answer. Raises `EngineError` if there is none that can be used."""
        self.asked += 1
        try:
            return await self._answer(question)
        except EngineError:
            self.failed += 1
            raise

    async def check(self, parser: EngineParser) -> None:
        """For start-up: whether the parser can be asked at all. Waits for an engine that does not answer. Raises
        `EngineError` that names endpoint and parser: a router has no such endpoint, and not every name works."""
        while True:
            try:
                await self._answer(probe(parser))
                return
            except EngineUnreachable as error:
                log.warning("waiting for the engine (--engine-url): %s", error)
                await asyncio.sleep(_ASK_AGAIN)
            except EngineError as error:
                raise EngineError(f"POST {endpoint_of(parser)} with the parser {parser.name!r}: {error}") from error

    async def _answer(self, question: Question) -> Answer:
        path = endpoint_of(question.parser)
        return read_answer(question, await self._workers.post_json(path, parse_body(question)))

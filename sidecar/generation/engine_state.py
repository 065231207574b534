"""What the engine last said of itself, all of its workers included, and since when it is silent. One event loop."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from adapters.engines.base import EngineError, EngineInfo
from sidecar.generation.controller import Controller
from sidecar.generation.survey import Survey
from sidecar.generation.transport import EngineTransport

_FRESH_SECONDS = 2.0
_CHECK_SECONDS = 10.0


class EngineState:
    """Asks the engine at most every two seconds; a silent engine leaves the last answer in place."""

    def __init__(self, transport: EngineTransport, controller: Controller, initial: EngineInfo) -> None:
        self._workers = transport.workers
        self._controller = controller
        self._info = initial
        self._survey: Survey | None = None
        self._asked_at = float("-inf")
        self.error: str | None = "not asked yet"
        """Why the engine, or one of its workers, did not answer the last time, or None."""
        self.answered = False
        """The engine has answered at least once."""

    @property
    def info(self) -> EngineInfo:
        """The last answer, of all workers together."""
        return self._info

    @property
    def state(self) -> str:
        """`up`, `down`, or `degraded` if some workers do not answer."""
        if self.error is None:
            return "up"
        return "degraded" if self._survey is not None and self._survey.infos else "down"

    @property
    def workers(self) -> list[dict[str, Any]]:
        """Each server's URL, versions and error, as of the last time it was asked."""
        return self._survey.described() if self._survey is not None else []

    async def refresh(self, limit: float | None = None) -> EngineInfo:
        """The newest answer that can be had, within `limit` seconds."""
        if time.monotonic() - self._asked_at >= _FRESH_SECONDS:
            await self._ask(limit)
        return self._info

    async def problem(self) -> str | None:
        """Ask all workers now, looked up anew: what keeps generation from going on, or None.

        Every worker has to answer, and all have to have the same weights."""
        await self._ask(_CHECK_SECONDS, discover=True)
        if self.error is not None:
            return f"the engine does not answer ({self.error})"
        assert self._survey is not None
        return self._survey.disagreement

    async def without_spans(self, limit: float) -> list[str]:
        """Ask now, for `limit` seconds: the servers that are not known to say which weights sampled which token."""
        await self._ask(limit, discover=True)
        return self._survey.without_spans if self._survey is not None else [f"{self._workers.url}: {self.error}"]

    def accept(self, info: EngineInfo) -> None:
        """Take an answer that was had otherwise (at start-up)."""
        self._asked_at = time.monotonic()
        self._survey = self._workers.last
        self.error = self._survey.silence if self._survey is not None else None
        self._accept(info)

    async def _ask(self, limit: float | None, *, discover: bool = False) -> None:
        self._asked_at = time.monotonic()
        try:
            survey = await self._workers.survey(limit, discover=discover)
        except EngineError as error:
            self._survey = None
            self.error = str(error) or type(error).__name__
            return
        self._survey, self.error = survey, survey.silence
        if survey.merged is not None:
            self._accept(survey.merged)

    def _accept(self, info: EngineInfo) -> None:
        self.answered = True
        if info.context_length is None:
            info = replace(info, context_length=self._info.context_length)
        self._info = info
        self._controller.incremental = info.incremental
        self._controller.weight_version = info.weight_version or self._controller.weight_version

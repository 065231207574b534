"""What the engine last said of itself, and since when it is silent. One event loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from adapters.engines.base import EngineError, EngineInfo
from sidecar.generation.controller import Controller
from sidecar.generation.transport import EngineTransport

_FRESH_SECONDS = 2.0


class EngineState:
    """Asks the engine at most every two seconds; a silent engine leaves the last answer in place."""

    def __init__(self, transport: EngineTransport, controller: Controller, initial: EngineInfo) -> None:
        self._transport = transport
        self._controller = controller
        self._info = initial
        self._asked_at = float("-inf")
        self.error: str | None = "not asked yet"
        """Why the engine did not answer the last time, or None."""
        self.answered = False
        """The engine has answered at least once."""

    @property
    def info(self) -> EngineInfo:
        """The last answer."""
        return self._info

    async def refresh(self, limit: float | None = None) -> EngineInfo:
        """The newest answer that can be had, within `limit` seconds."""
        if time.monotonic() - self._asked_at < _FRESH_SECONDS:
            return self._info
        self._asked_at = time.monotonic()
        try:
            async with asyncio.timeout(limit):
                info = await self._transport.info()
        except (EngineError, TimeoutError) as error:
            self.error = str(error) or f"no answer within {limit} s"
            return self._info
        self._accept(info)
        return self._info

    async def check(self) -> bool:
        """Ask the engine now; whether it answers."""
        self._asked_at = float("-inf")
        await self.refresh()
        return self.error is None

    def accept(self, info: EngineInfo) -> None:
        """Take an answer that was had otherwise (at start-up)."""
        self._asked_at = time.monotonic()
        self._accept(info)

    def _accept(self, info: EngineInfo) -> None:
        self.error, self.answered = None, True
        if info.context_length is None:
            info = replace(info, context_length=self._info.context_length)
        self._info = info
        self._controller.incremental = info.incremental
        self._controller.weight_version = info.weight_version or self._controller.weight_version

"""Counts a listener's requests and their answers. One event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNANSWERED = 0
"""In the place of a status: the client left, or the process went down, before there was one."""


@dataclass(slots=True)
class RequestCounts:
    """Since the start, by HTTP status; and those that are not over, streams included."""

    answered: Counter[int] = field(default_factory=Counter)
    in_flight: int = 0


class Counted:
    """Middleware around an ASGI app."""

    def __init__(self, app: ASGIApp, counts: RequestCounts) -> None:
        self._app, self._counts = app, counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and note how it was answered."""
        status = UNANSWERED

        def noted(message: Message) -> Awaitable[None]:  # no coroutine of its own for each event of a stream
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            return send(message)

        self._counts.in_flight += 1
        try:
            await self._app(scope, receive, noted)
        finally:
            self._counts.in_flight -= 1
            self._counts.answered[status] += 1

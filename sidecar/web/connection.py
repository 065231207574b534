"""Breaking off the connection that a request came on, which ASGI has no message for.

A closed connection waits until what was written has been read, so a peer that reads nothing would keep it, and a
file descriptor, for good. One event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_EXTENSION = "tito.break_off"


class BreakableProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol; each request's scope carries what `break_off` needs (uvicorn 0.54)."""

    def on_message_begin(self) -> None:
        """A request begins: its scope is new."""
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"abort": self.transport.abort}}


def break_off(scope: Scope) -> None:
    """Drop the request's connection at once, unsent bytes too. Nothing where another server than ours serves it."""
    extension = scope.get("extensions", {}).get(_EXTENSION)
    if extension is not None:
        cast(Callable[[], None], extension["abort"])()

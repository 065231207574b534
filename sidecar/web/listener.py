"""One ASGI app on one address, served by uvicorn inside the running event loop.

The port is bound before `start` returns, so port 0 works and a taken port is an exception, not an exit. Signals are
the process's business: it has one shutdown path for all listeners.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from sidecar.config import split_address
from sidecar.web.connection import BreakableProtocol

_BACKLOG = 2048
_KEEP_ALIVE = 24 * 3600
"""Seconds. A proxy in front (ours too) that finds its idle connection closed answers 502 to the agent."""


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signal handlers alone."""
        yield


class ListenError(Exception):
    """The address cannot be listened on; the text names it and the flag."""


class Listener:
    """`flag` is the setting that the address comes from, for error messages."""

    def __init__(self, app: ASGIApp, address: str, flag: str) -> None:
        self._app = app
        self._address = address
        self._flag = flag
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._bound: socket.socket | None = None
        """Bound, and not served yet."""
        self.host = ""
        self.port = 0

    @property
    def url(self) -> str:
        """`http://HOST:PORT` as bound."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def local_address(self) -> tuple[str, int]:
        """Where this machine reaches it: loopback if it listens on all interfaces."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host), self.port

    @property
    def problem(self) -> str | None:
        """Why nothing listens, or None."""
        if self._task is None:
            return f"{self._flag} is not listening"
        if self._task.done():
            return f"{self._flag} has stopped listening"
        return None

    def bind(self) -> None:
        """Take the address: connections wait until `start`. Raises `ListenError`."""
        self._bound = self._bind()
        self.host, self.port = self._bound.getsockname()[:2]

    async def start(self) -> None:
        """Serve; `bind` first if that was not done. Raises `ListenError`."""
        if self._bound is None:
            self.bind()
        bound, self._bound = self._bound, None
        assert bound is not None
        config = uvicorn.Config(
            self._app,
            http=BreakableProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=5,
        )
        self._server = _Server(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[bound]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise ListenError(f"{self._flag} {self._address}: the server ended at once")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Close the listener and its connections; running responses get a few seconds."""
        if self._bound is not None:
            self._bound.close()
            self._bound = None
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None

    def _bind(self) -> socket.socket:
        host, port = split_address(self._address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sets TCP_NODELAY only on sockets that name their protocol; without it each reply waits 40 ms
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
            bound.listen(_BACKLOG)
        except OSError as error:
            bound.close()
            raise ListenError(
                f"cannot listen on {self._flag} {self._address}: {error.strerror or error}"
            ) from error
        bound.setblocking(False)
        return bound

"""An agent as a bare connection: it leaves when it likes, and reads nothing unless it is told to."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.running import Running
from tests.support.waiting import LIVENESS

LONG = "-" * 64 * 4000
"""4,000 ids whose events are half a megabyte and more."""


@asynccontextmanager
async def agent_of(running: Running, session: str, body: Any, **headers: str) -> AsyncIterator[socket.socket]:
    """An agent that has sent its call and reads nothing; leaving the block closes it. Underscores in header names
    are dashes."""
    data = json.dumps(body).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST /sessions/{session}/v1/chat/completions HTTP/1.1\r\nHost: x\r\n{more}"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    connection = socket.socket()
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(connection, ("127.0.0.1", running.sidecar.gateway.port))
        await loop.sock_sendall(connection, head.encode() + data)
        yield connection
    finally:
        connection.close()


async def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """Everything up to `mark`; `AssertionError` if the connection ends before it."""
    received = bytearray()
    async with asyncio.timeout(LIVENESS):
        while mark not in received:
            data = await asyncio.get_running_loop().sock_recv(connection, 65536)
            assert data, f"the connection ended after {len(received)} bytes"
            received += data
    return bytes(received)


def small_buffers(running: Running) -> None:
    """Let `send` block after some kilobytes; by itself the kernel takes megabytes of a reply that nobody reads."""
    server = running.sidecar.gateway._server
    assert server is not None
    for listening in server.servers[0].sockets:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def connections(running: Running) -> list[Any]:
    """The data plane's open connections (uvicorn's protocol objects)."""
    server = running.sidecar.gateway._server
    assert server is not None
    return list(server.server_state.connections)

"""As much of an HTTP/1.1 server as the stand-in engine needs, with next to no cost per chunk. One event loop.

Bodies with a length, kept connections, chunked replies. A peer that reads too slowly is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import orjson

_MOST_UNSENT = 64 * 2**20
Handler = Callable[["RawConnection", str, str, bytes], None]


class RawConnection(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._buffer = bytearray()
        self._transport: asyncio.Transport
        self._on_lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_MOST_UNSENT)

    def connection_lost(self, error: Exception | None) -> None:
        if self._on_lost is not None:
            self._on_lost()

    def pause_writing(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            request, *headers = bytes(self._buffer[:head_end]).decode("latin-1").split("\r\n")
            named = dict(line.lower().split(":", 1) for line in headers)
            end = head_end + 4 + int(named.get("content-length", "0"))
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[head_end + 4 : end])
            del self._buffer[:end]
            method, path, _ = request.split(" ")
            self._handler(self, method, path, body)

    def send_json(self, status: int, answer: dict[str, Any]) -> None:
        """A whole reply."""
        body = orjson.dumps(answer)
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def start_chunks(self, content_type: str, on_lost: Callable[[], None]) -> None:
        """Begin a reply in chunks; `on_lost` is called if the peer goes before its end."""
        self._on_lost = on_lost
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
        self._transport.write(head.encode())

    def send_chunk(self, data: bytes) -> None:
        """A piece of the body."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_chunks(self) -> None:
        """The body's end."""
        self._on_lost = None
        self._transport.write(b"0\r\n\r\n")


async def serve_raw(port: int, handler: Handler) -> asyncio.Server:
    """Listen on loopback."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: RawConnection(handler), "127.0.0.1", port, backlog=2048)

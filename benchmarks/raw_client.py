"""An HTTP/1.1 client for thousands of agents in one process: it keeps what comes, and reads it when it is complete.

One connection per agent, kept between calls, one call at a time. One event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import orjson

_END_OF_CHUNKS = b"\r\n0\r\n\r\n"


class BrokenReply(Exception):  # noqa: N818 - what the agent sees
    """The reply is not whole: an error status, a lost connection, or no end."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """`reads` counts the pieces in which it came; `longest_gap` is the longest time between two, in seconds."""

    status: int
    headers: dict[str, str]
    body: bytes
    reads: int
    longest_gap: float


class RawClient(asyncio.Protocol):
    """`path` and `host` are those of every call."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._head: tuple[int, dict[str, str], int] | None = None
        self._waiting: asyncio.Future[HttpReply] | None = None
        self._reads = 0
        self._last_read = self._longest_gap = 0.0
        self._clock: Callable[[], float] = asyncio.get_running_loop().time

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> HttpReply:
        """Send and wait for the whole reply. Raises `BrokenReply`, `OSError`."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            await loop.create_connection(lambda: self, *self._address)
        assert self._transport is not None
        named = {"Host": "{}:{}".format(*self._address), "Content-Type": "application/json", **headers}
        named["Content-Length"] = str(len(body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self._waiting = loop.create_future()
        self._reads, self._last_read, self._longest_gap = 0, 0.0, 0.0
        self._transport.write(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        return await self._waiting

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._received.clear()
        self._head = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(BrokenReply(f"the connection was lost: {error or 'closed by the server'}"))

    def data_received(self, data: bytes) -> None:
        now = self._clock()
        if self._reads:
            self._longest_gap = max(self._longest_gap, now - self._last_read)
        self._last_read = now
        self._reads += 1
        self._received += data
        if self._head is None and not self._read_head():
            return
        assert self._head is not None
        status, headers, begin = self._head
        if "content-length" in headers:
            body = bytes(self._received[begin:]) if self._complete(begin, int(headers["content-length"])) else None
        else:
            ended = self._received.endswith(_END_OF_CHUNKS)
            body = unchunked(memoryview(self._received)[begin:]) if ended else None
        if body is not None and self._waiting is not None:
            waiting, self._waiting, self._head = self._waiting, None, None
            self._received.clear()
            waiting.set_result(HttpReply(status, headers, body, self._reads, self._longest_gap))

    def _read_head(self) -> bool:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = self._received[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        self._head = int(first.split(" ")[1]), headers, end + 4
        return True

    def _complete(self, begin: int, length: int) -> bool:
        return len(self._received) - begin >= length


def unchunked(data: memoryview) -> bytes:
    """The body of a chunked reply."""
    with data:
        raw, body, at = bytes(data), [], 0
    while True:
        line_end = raw.index(b"\r\n", at)
        size = int(raw[at:line_end], 16)
        if not size:
            return b"".join(body)
        body.append(raw[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2


def read_events(reply: HttpReply) -> list[dict[str, Any]]:
    """The JSON events of a stream up to `[DONE]`. Raises `BrokenReply` for an error, or without an end."""
    if reply.status != 200:
        raise BrokenReply(f"status {reply.status}: {reply.body[:200]!r}")
    *events, done, rest = reply.body.split(b"\n\n")
    if done != b"data: [DONE]" or rest:
        raise BrokenReply(f"the stream ends with {reply.body[-200:]!r}")
    read = [orjson.loads(one[6:]) for one in events if one.startswith(b"data: ")]
    for one in read:
        if "error" in one:
            raise BrokenReply(f"an error event: {one['error']}")
    return read

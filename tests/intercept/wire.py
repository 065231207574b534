"""Talks to a proxy in raw bytes, for requests that no HTTP client would send.

Promise: what is sent is exactly what the test wrote. Concurrency: one task per connection.
"""

import asyncio
import json
import socket
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One HTTP/1.1 answer with a content-length; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error object of OpenAI's envelope."""
        found = json.loads(self.body)["error"]
        assert isinstance(found, dict)
        return found


class Wire:
    """A connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Wire":
        """Connect to the proxy."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    @classmethod
    async def tunnel(cls, port: int, target: str, *, trust: Path | None = None, sni: str | None = None) -> "Wire":
        """Connect through to ``target``; with ``trust`` also do TLS inside, strictly verified."""
        wire = await cls.open(port)
        reply = await wire.ask(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")
        assert reply.status == 200, reply
        if trust is not None:
            await wire.start_tls(trust, sni or target.partition(":")[0])
        return wire

    async def start_tls(self, trust: Path, name: str) -> None:
        """Do TLS from here on, strictly verified, asking for ``name``."""
        context = ssl.create_default_context(cafile=str(trust))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        await self._writer.start_tls(context, server_hostname=name)

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def ask(self, request: str) -> Reply:
        """Send a request and read the answer, within 10 s."""
        async with asyncio.timeout(10):
            await self.send(request.encode())
            return await self._read_reply()

    async def until_closed(self) -> bytes:
        """Read what comes until the proxy closes, within 10 s."""
        async with asyncio.timeout(10):
            return await self._reader.read()

    async def read_until(self, mark: bytes) -> bytes:
        """Read up to and with ``mark``, within 10 s."""
        async with asyncio.timeout(10):
            return await self._reader.readuntil(mark)

    async def until_closed_or(self, mark: bytes) -> bytes:
        """Read until the proxy closes or says ``mark``, within 10 s."""
        try:
            return await self.read_until(mark)
        except asyncio.IncompleteReadError as error:
            return error.partial
        except ConnectionError:
            return b""

    def half_close(self) -> None:
        """Send no more."""
        self._writer.write_eof()

    def reset(self) -> None:
        """Hang up with a reset, as a killed process with unread data does."""
        linger = struct.pack("ii", 1, 0)
        if (open_socket := self._writer.get_extra_info("socket")) is not None:  # else it was cut off already
            open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def _read_reply(self) -> Reply:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name
        }
        body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return Reply(status=int(head[0].split()[1]), headers=headers, body=body)

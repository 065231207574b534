"""A wire between the sidecar and an engine that keeps a copy of what goes over it.

Promise: bytes pass unchanged in both directions and a side that closes closes the other, so neither end can tell it
from a direct connection; every HTTP exchange is kept, with what came of its reply so far. `cut` breaks the
connections of running generations, as a network does. Concurrency: one event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

import httptools

from tests.fake_sglang.signals import Signal
from tests.support.waiting import LIVENESS

_CHUNK = 1 << 16


class Exchange:
    """One request and its reply. `events` are the payloads of an event stream so far, without `[DONE]`."""

    def __init__(self) -> None:
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body = b""
        self.events: list[dict[str, Any]] = []
        self.closed = False
        """The reply is complete, or its connection is gone."""
        self._unread = b""

    @property
    def asked(self) -> dict[str, Any]:
        """The request's JSON."""
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    @property
    def input_ids(self) -> list[int]:
        """The prompt that the engine got."""
        ids: list[int] = self.asked["input_ids"]
        return ids

    @property
    def rid(self) -> str:
        """The request's id."""
        return str(self.asked["rid"])

    @property
    def session(self) -> str | None:
        """The session that the sidecar names to routers."""
        return self.headers.get("x-smg-routing-key")

    @property
    def pairs(self) -> list[tuple[int, float]]:
        """Ids and logprobs that the engine sent so far, whichever way its stream counts."""
        found: list[tuple[int, float]] = []
        for event in self.events:
            entries = [(entry[1], entry[0]) for entry in event["meta_info"].get("output_token_logprobs") or []]
            ids = event.get("output_ids") or []
            total = event["meta_info"].get("completion_tokens", len(found))
            if len(ids) == total and total >= len(found):
                found = entries
            elif total == len(found) + len(ids):
                found += entries
        return found

    @property
    def output_ids(self) -> list[int]:
        """The ids of `pairs`."""
        return [index for index, _ in self.pairs]

    @property
    def last(self) -> dict[str, Any]:
        """`meta_info` of the newest event."""
        meta: dict[str, Any] = self.events[-1]["meta_info"]
        return meta

    @property
    def versions(self) -> list[str]:
        """The version of every id as the engine's spans say it, in order."""
        spans = self.last["weight_versions"]
        return [span["version"] for span in spans for _ in range(span["start"], span["end"])]

    @property
    def finish(self) -> str | None:
        """Kind of the engine's finish reason; None while there is none."""
        reason = self.events[-1]["meta_info"]["finish_reason"] if self.events else None
        return reason["type"] if reason else None

    def take(self, body: bytes) -> None:
        """A piece of the reply's body."""
        *whole, self._unread = (self._unread + body).split(b"\n\n")
        for event in whole:
            data = event.removeprefix(b"data: ")
            if data != event and data != b"[DONE]":
                payload = json.loads(data)
                if "meta_info" in payload:
                    self.events.append(payload)


class Tap:
    """Listens on `url` and passes everything on to the engine at `target`."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self.exchanges: list[Exchange] = []
        self.changed = Signal()
        self.url = ""
        self._server: asyncio.Server
        self._wires: set[_Wire] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for wire in list(self._wires):
            wire.cut()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            writer.transport.abort()
            return
        wire = _Wire(self, writer, far_writer)
        self._wires.add(wire)
        try:
            await wire.run(reader, far_reader)
        finally:
            self._wires.discard(wire)

    def sent_to(self, path: str) -> list[Exchange]:
        """Exchanges of one path, oldest first."""
        return [exchange for exchange in self.exchanges if exchange.path == path]

    def generations(self, session: str) -> list[Exchange]:
        """The session's engine calls, oldest first."""
        return [exchange for exchange in self.sent_to("/generate") if exchange.session == session]

    async def until(self, condition: Callable[[], object], seconds: float = 2 * LIVENESS) -> None:
        """Until `condition()` holds; looked at whenever something passes. `TimeoutError` after `seconds`."""
        await self.changed.wait_until(condition, seconds)

    async def until_ids(self, session: str, count: int, index: int = -1) -> Exchange:
        """Until the session's engine call at `index` has given `count` ids; that call."""
        place = index + 1 if index >= 0 else -index

        def reached() -> bool:
            calls = self.generations(session)
            return len(calls) >= place and len(calls[index].output_ids) >= count

        await self.until(reached)
        return self.generations(session)[index]

    def cut(self) -> None:
        """Break every connection that carries an unfinished generation."""
        for wire in list(self._wires):
            if any(not exchange.closed and exchange.path == "/generate" for exchange in wire.exchanges):
                wire.cut()


class _Wire:
    """One connection through the tap."""

    def __init__(self, tap: Tap, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self._tap = tap
        self._writers = (near, far)
        self.exchanges: list[Exchange] = []

    async def run(self, near: asyncio.StreamReader, far: asyncio.StreamReader) -> None:
        """Until either side closes."""
        near_writer, far_writer = self._writers
        asks = asyncio.ensure_future(self._copy(near, far_writer, httptools.HttpRequestParser(_Asks(self))))
        replies = asyncio.ensure_future(self._copy(far, near_writer, httptools.HttpResponseParser(_Replies(self))))
        try:
            await asyncio.wait((asks, replies), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (asks, replies):
                task.cancel()
            for writer in self._writers:
                writer.close()
            self.settle()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: Any) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                parser.feed_data(data)
                self._tap.changed.fire()
                writer.write(data)
                await writer.drain()

    def cut(self) -> None:
        """Break it on both sides."""
        for writer in self._writers:
            writer.transport.abort()

    def open(self) -> Exchange:
        """A request begins."""
        exchange = Exchange()
        self.exchanges.append(exchange)
        self._tap.exchanges.append(exchange)
        return exchange

    def settle(self) -> None:
        """Nothing more comes for what was asked here."""
        for exchange in self.exchanges:
            exchange.closed = True
        self._tap.changed.fire()


class _Asks:
    """Callbacks of the request parser."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def on_message_begin(self) -> None:
        self._wire.open()

    def on_url(self, url: bytes) -> None:
        self._wire.exchanges[-1].path += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._wire.exchanges[-1].headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self._wire.exchanges[-1].body += body


class _Replies:
    """Callbacks of the response parser."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def on_body(self, body: bytes) -> None:
        self._wire.exchanges[-1].take(body)

    def on_message_complete(self) -> None:
        self._wire.exchanges[-1].closed = True

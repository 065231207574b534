"""The engine's HTTP side: streams of `/generate`.

Aborts and questions go over `workers`' own clients, so that an abort never waits behind a thousand open streams.
One event loop; every call may be cancelled at any await, which closes its connection (and SGLang then aborts).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import aiohttp

from adapters.engines.base import ContractError, EngineInfo, EngineUnreachable
from adapters.engines.sglang import SESSION_HEADER, raise_http_error
from sidecar.generation.events import EventSplitter
from sidecar.generation.workers import Workers
from sidecar.silence import Silence

_CONNECT_SECONDS = 10
_KEEP_ALIVE_SECONDS = 3
"""Less than SGLang's own 5 s, so that no call goes out on a connection that is just being closed."""
_END_SECONDS = 0.2
_WORKER_HEADER = "x-smg-routed-worker-id"
"""Which worker a call went to, as smg 1.13.0 says; sglang-router 0.3.2 does not."""


class EngineTransport:
    """`url` is an SGLang server or a router. After `silence` seconds without a byte it is asked if it lives."""

    def __init__(self, url: str, api_key: str | None, admin_key: str | None, silence: float) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._silence = silence
        self._streams: aiohttp.ClientSession | None = None
        self.workers = Workers(url, api_key, admin_key)
        """The servers behind `url`."""

    async def start(self) -> None:
        """Make the clients; nothing is sent yet."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        self._streams = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS, socket_factory=_kept_alive
            ),
            timeout=timeout,
            auto_decompress=True,
        )
        await self.workers.start()

    async def close(self) -> None:
        """Close the clients and their connections."""
        if self._streams is not None:
            await self._streams.close()
        await self.workers.close()

    async def info(self) -> EngineInfo:
        """What the engine says of itself. Raises `EngineError` if nobody behind it answers."""
        survey = await self.workers.survey()
        if survey.merged is None:
            raise next(worker.failure for worker in survey.workers if worker.failure is not None)
        return survey.merged

    async def generate(self, body: bytes, session_id: str) -> AsyncGenerator[dict[str, Any]]:
        """Payloads of one `/generate` stream, up to `[DONE]`.

        Raises `EngineUnreachable` if there is no connection or it breaks, the engine's own errors for HTTP errors,
        `ContractError` for a reply that is no event stream."""
        assert self._streams is not None, "start() comes first"
        headers = {**self._headers, SESSION_HEADER: session_id, "Content-Type": "application/json"}
        try:
            async with await self._opened(body, headers) as response:
                if response.status != 200:
                    raise_http_error(response.status, await response.read())
                if response.content_type != "text/event-stream":
                    start = (await response.content.read(200)).decode(errors="replace")
                    raise ContractError(
                        f"the engine answers {response.content_type} instead of a stream: {start!r}"
                    )
                with self._listening(response) as silence:
                    events = EventSplitter()
                    while not events.done:
                        data = await response.content.readany()
                        silence.heard()
                        if not data:
                            raise EngineUnreachable(f"{self.url}: the stream ended before [DONE]")
                        for payload in events.feed(data):
                            yield payload
                await _read_to_end(response)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise EngineUnreachable(f"{self.url}: {error or type(error).__name__}") from error

    async def _opened(self, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """The beginning of a response. A router passes it on when it has it, and a server that hangs sends none."""
        assert self._streams is not None, "start() comes first"
        asked = asyncio.ensure_future(self._streams.post(f"{self.url}/generate", data=body, headers=headers))
        try:
            while not (await asyncio.wait({asked}, timeout=self._silence))[0]:
                if not await self.workers.alive():
                    raise EngineUnreachable(f"{self.url}: silent for {self._silence:g} s and not alive")
        except BaseException:
            asked.add_done_callback(_close_response)
            asked.cancel()
            raise
        return asked.result()

    @contextmanager
    def _listening(self, response: aiohttp.ClientResponse) -> Iterator[Silence]:
        """For the length of the block: after a silence the worker is asked, and the stream broken if it is dead."""
        asking: list[asyncio.Task[None]] = []

        async def ask() -> None:
            alive = await self.workers.alive(response.headers.get(_WORKER_HEADER))
            if not alive and not silence.since(self._silence):
                why = f"{self.url}: silent for {self._silence:g} s and not alive"
                response.content.set_exception(EngineUnreachable(why))
            asking.clear()

        def on_silent() -> None:
            if not asking:
                asking.append(asyncio.get_running_loop().create_task(ask()))

        silence = Silence(self._silence, on_silent)
        try:
            yield silence
        finally:
            silence.close()
            for task in asking:
                task.cancel()


def _close_response(asked: asyncio.Future[aiohttp.ClientResponse]) -> None:
    if not asked.cancelled() and asked.exception() is None:
        asked.result().close()


def _kept_alive(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket on which the kernel notices a peer that has vanished, also while nothing is to be sent."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):  # macOS calls the first one otherwise
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    """After `[DONE]` comes the end of the body: a response that is left before it takes its connection along."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            while await response.content.readany():
                pass

"""The engine's HTTP side: streams of `/generate`, aborts, and what the engine says of itself.

Generation and control use separate clients, so that an abort never waits behind a thousand open streams.
One event loop; every call may be cancelled at any await, which closes its connection (and SGLang then aborts).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import orjson

from adapters.engines.base import ContractError, EngineError, EngineInfo, EngineUnreachable
from adapters.engines.sglang import SESSION_HEADER, engine_info, raise_http_error

_CONNECT_SECONDS = 10
_CONTROL_SECONDS = 10
_KEEP_ALIVE_SECONDS = 3
"""Less than SGLang's own 5 s, so that no call goes out on a connection that is just being closed."""
_END_SECONDS = 0.2
_EVENT_LIMIT = 256 * 2**20
"""Bytes of one SSE event; a cumulative stream repeats all ids and logprobs in each."""


class EngineTransport:
    """`url` is one SGLang server. After `silence` seconds without a byte it is asked whether it lives."""

    def __init__(self, url: str, api_key: str | None, admin_key: str | None, silence: float) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        admin = admin_key or api_key
        self._admin_headers = {"Authorization": f"Bearer {admin}"} if admin else {}
        self._silence = silence
        self._streams: aiohttp.ClientSession | None = None
        self._control: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Make the clients; nothing is sent yet."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        self._streams = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
            timeout=timeout,
            auto_decompress=True,
        )
        self._control = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=_CONTROL_SECONDS),
        )

    async def close(self) -> None:
        """Close both clients and their connections."""
        for client in (self._streams, self._control):
            if client is not None:
                await client.close()

    async def generate(self, body: bytes, session_id: str) -> AsyncGenerator[dict[str, Any]]:
        """Payloads of one `/generate` stream, up to `[DONE]`.

        Raises `EngineUnreachable` if there is no connection or it breaks, the engine's own errors for HTTP errors,
        `ContractError` for a reply that is no event stream."""
        assert self._streams is not None, "start() comes first"
        headers = {**self._headers, SESSION_HEADER: session_id, "Content-Type": "application/json"}
        try:
            async with self._streams.post(f"{self.url}/generate", data=body, headers=headers) as response:
                if response.status != 200:
                    raise_http_error(response.status, await response.read())
                if response.content_type != "text/event-stream":
                    start = (await response.content.read(200)).decode(errors="replace")
                    raise ContractError(
                        f"the engine answers {response.content_type} instead of a stream: {start!r}"
                    )
                async for payload in self._events(response):
                    yield payload
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise EngineUnreachable(f"{self.url}: {error or type(error).__name__}") from error

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncGenerator[dict[str, Any]]:
        """Split from raw chunks: aiohttp's line reader stops at 512 KB."""
        buffer = bytearray()
        while True:
            chunk = await self._read(response)
            if not chunk:
                raise EngineUnreachable(f"{self.url}: the stream ended before [DONE]")
            searched = max(0, len(buffer) - 1)
            buffer += chunk
            while (end := buffer.find(b"\n\n", searched)) >= 0:
                event = bytes(buffer[:end])
                del buffer[: end + 2]
                searched = 0
                data = event.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    await _read_to_end(response)
                    return
                if event.startswith(b"data:"):
                    yield _payload(data)
            if len(buffer) > _EVENT_LIMIT:
                raise ContractError(f"the engine sent an event of more than {_EVENT_LIMIT} bytes")

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        while True:
            try:
                async with asyncio.timeout(self._silence):
                    return await response.content.readany()
            except TimeoutError:
                if not await self.alive():
                    raise EngineUnreachable(f"{self.url}: silent for {self._silence:g} s and not alive") from None

    async def abort(self, rid: str) -> bool:
        """Ask for an abort; False if the engine could not be asked (a router, or no connection)."""
        assert self._control is not None, "start() comes first"
        try:
            async with self._control.post(
                f"{self.url}/abort_request", json={"rid": rid}, headers=self._admin_headers
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            return False

    async def alive(self) -> bool:
        """Whether the server answers. `/model_info` does so while the engine is paused, `/health` does not."""
        try:
            await self._get_json("/model_info")
        except EngineError:
            return False
        return True

    async def info(self) -> EngineInfo:
        """What the engine says of itself. Raises `EngineError` if it cannot be asked."""
        model_info = await self._get_json("/model_info")
        server_info: dict[str, Any] = {}
        models: dict[str, Any] = {}
        with suppress(EngineError):  # both add details; a server without them is served all the same
            server_info = await self._get_json("/server_info")
        with suppress(EngineError):
            models = await self._get_json("/v1/models")
        return engine_info(model_info, server_info, models)

    async def post_json(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that one of the server's small endpoints answers; asked once. Raises `EngineError`."""
        return await self._json("POST", path, orjson.dumps(body))

    async def _get_json(self, path: str) -> dict[str, Any]:
        parsed = await self._json("GET", path, None)
        return parsed if isinstance(parsed, dict) else {}

    async def _json(self, method: str, path: str, data: bytes | None) -> Any:
        assert self._control is not None, "start() comes first"
        headers = {**self._headers, **({"Content-Type": "application/json"} if data is not None else {})}
        try:
            async with self._control.request(method, f"{self.url}{path}", data=data, headers=headers) as response:
                body = await response.read()
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise EngineUnreachable(f"{self.url}{path}: {error or type(error).__name__}") from error
        if response.status != 200:
            raise_http_error(response.status, body)
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise ContractError(f"{self.url}{path} answers no JSON") from error


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    """After `[DONE]` comes the end of the body: a response that is left before it takes its connection along."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            while await response.content.readany():
                pass


def _payload(data: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ContractError(f"the engine sent an event that is no JSON: {data[:100]!r}") from error
    if not isinstance(parsed, dict):
        raise ContractError(f"the engine sent an event that is no object: {data[:100]!r}")
    return parsed

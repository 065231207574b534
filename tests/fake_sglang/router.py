"""A stand-in for sglang-router and smg: spreads `/generate` over workers and has no control plane.

Promise: what sglang-router 0.3.2 and smg 1.13.0 were seen to do: `GET /workers` lists the workers,
`/get_model_info` is a worker's, every control path is 404, sampling keys that it does not know are dropped from
the body, a call sticks to a worker by `X-SMG-Routing-Key`, and a client that leaves takes the worker's request
along.
Concurrency: one event loop; `listed` may be changed at any time.
"""

import asyncio
import zlib
from typing import Any, Self

import aiohttp
from aiohttp import web

from tests.fake_sglang.recorder import ROUTING_KEY

DROPPED = ("stream_interval", "spaces_between_special_tokens", "logit_bias")


class FakeRouter:
    """A router on a free port of the loopback interface.

    workers: where `/generate` goes. listed: the URLs that `/workers` names, by default the same; other ones are
        workers that cannot be reached from outside. healthy: what it says of all of them. names_worker: replies
        tell their worker in a header, as smg's do.
    """

    def __init__(
        self,
        *workers: str,
        listed: list[str] | None = None,
        healthy: bool = True,
        api_key: str | None = None,
        names_worker: bool = True,
    ) -> None:
        self.workers = list(workers)
        self.listed = list(workers) if listed is None else listed
        self.healthy = healthy
        self.api_key = api_key
        self.names_worker = names_worker
        self.asked: list[str] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/workers", self._workers)
        app.router.add_post("/generate", self._generate)
        app.router.add_get("/get_model_info", self._model_info)
        app.router.add_route("*", "/{path:.*}", self._unknown)
        self._client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._client.close()

    def worker_of(self, session: str) -> str:
        """Where a session's calls go."""
        return self.workers[zlib.crc32(session.encode()) % len(self.workers)]

    async def _workers(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.api_key is not None and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        workers = [
            {"id": str(index), "url": url, "model_id": "fake", "worker_type": "regular", "is_healthy": self.healthy,
             "load": 0, "connection_mode": "http"}
            for index, url in enumerate(self.listed)
        ]  # fmt: skip
        return web.json_response({"workers": workers, "total": len(workers)})

    async def _model_info(self, _: web.Request) -> web.Response:
        async with self._client.get(f"{self.workers[0]}/model_info") as response:
            return web.json_response(await response.json(), status=response.status)

    async def _unknown(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        return web.Response(status=404)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        for name in DROPPED:
            body.get("sampling_params", {}).pop(name, None)
        key = request.headers.get(ROUTING_KEY, "")
        worker = self.worker_of(key)
        headers = {ROUTING_KEY: key}
        if "Authorization" in request.headers:
            headers["Authorization"] = request.headers["Authorization"]
        try:
            async with self._client.post(f"{worker}/generate", json=body, headers=headers) as upstream:
                named = {"x-smg-routed-worker-id": worker} if self.names_worker else {}
                response = web.StreamResponse(
                    status=upstream.status, headers={"Content-Type": upstream.headers["Content-Type"], **named}
                )
                await response.prepare(request)
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
        except aiohttp.ClientError:
            if request.transport is not None:
                request.transport.abort()
            raise
        return response


class SilentServer:
    """Accepts connections and never answers: a process that hangs."""

    async def __aenter__(self) -> Self:
        self.connections = 0

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            self._writers.append(writer)

        self._writers: list[asyncio.StreamWriter] = []
        self._server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._server.close()

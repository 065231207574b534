"""The servers behind `--engine-url`: found, asked what they are, and told to abort, over connections of their own.

`--engine-url` is an SGLang server, or a router (sglang-router, smg) that names its workers at `GET /workers`; a
server answers that with 404. Routers have no control plane, so aborts and questions go to the workers themselves.
One event loop. Every question has a limit of its own: a worker that hangs delays no other one's answer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from adapters.engines.base import ContractError, EngineError, EngineRefusal, EngineUnreachable
from adapters.engines.sglang import engine_info, raise_http_error
from sidecar.generation.survey import Survey, WorkerState

_CONTROL_SECONDS = 10.0
_ABORT_SECONDS = 2.0
_ABORT_CONNECTIONS = 64
"""Per worker. A thousand aborts at once over a connection each would cost more than they end."""


@dataclass(frozen=True, slots=True)
class _Listed:
    url: str
    healthy: bool


class Workers:
    """`urls` are the servers that were found last; until `discover` it is the engine's own URL."""

    def __init__(self, url: str, api_key: str | None, admin_key: str | None) -> None:
        self.url = url.rstrip("/")
        self.router = False
        """`url` is a router, as far as is known."""
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        admin = admin_key or api_key
        self._admin_headers = {"Authorization": f"Bearer {admin}"} if admin else {}
        self._listed: tuple[_Listed, ...] = (_Listed(self.url, True),)
        self._reached = False
        self.last: Survey | None = None
        """The newest survey."""
        self._control: aiohttp.ClientSession | None = None
        self._aborts: aiohttp.ClientSession | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """Where the model runs, without a trailing slash."""
        return tuple(worker.url for worker in self._listed)

    async def start(self) -> None:
        """Make the clients; nothing is sent yet."""
        self._control = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=_CONTROL_SECONDS)
        )
        self._aborts = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=_ABORT_CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=_ABORT_SECONDS),
        )

    async def close(self) -> None:
        """Close both clients and their connections."""
        for client in (self._control, self._aborts):
            if client is not None:
                await client.close()

    async def discover(self, limit: float = _CONTROL_SECONDS) -> tuple[str, ...]:
        """Ask who the workers are now, for `limit` seconds; their URLs.

        Raises `EngineError` if nobody answers or a router lists none; what was known stays."""
        try:
            async with asyncio.timeout(limit):
                answer = await self._get_json(self.url, "/workers")
        except TimeoutError:
            raise EngineUnreachable(f"{self.url}/workers: no answer within {limit:g} s") from None
        except EngineRefusal as error:
            if error.status not in (404, 405):
                raise
            self.router, self._listed = False, (_Listed(self.url, True),)
            return self.urls
        if not isinstance(answer.get("workers"), list):
            raise ContractError(f"{self.url}/workers lists no workers: {str(answer)[:100]}")
        self.router = True
        found = _read_listed(answer["workers"])
        if not found:
            raise EngineUnreachable(f"{self.url}: the router lists no worker that speaks HTTP")
        self._listed = found
        return self.urls

    async def survey(self, limit: float | None = None, *, discover: bool = False) -> Survey:
        """What every worker says of itself, within `limit` seconds. `discover`: ask also a server that had no
        workers whether it has some now; a router's are looked up anew each time.

        Raises `EngineError` if it is not known whom to ask."""
        seconds = _CONTROL_SECONDS if limit is None else limit / 2
        if discover or self.router or not self._reached:
            await self.discover(seconds)
        states = tuple(await asyncio.gather(*(self._state(url, seconds) for url in self.urls)))
        self._reached = self._reached or any(state.info is not None for state in states)
        if self.router and not self._reached and all(worker.healthy for worker in self._listed):
            # The workers' addresses are the router's business and may lead nowhere from here.
            self.last = Survey(self.router, states, vouched=(await self._state(self.url, seconds)).info)
        else:
            self.last = Survey(self.router, states)
        return self.last

    async def abort(self, rid: str) -> bool:
        """Ask every worker to abort a call; False if none could be asked. Takes two seconds at most."""
        asked = await asyncio.gather(*(self._abort_at(url, rid) for url in self.urls))
        return any(asked)

    async def alive(self, url: str | None = None) -> bool:
        """Whether the worker at `url` answers; without one, or for a stranger, whether all do.

        `/model_info` is answered while the engine is paused, `/health` is not."""
        asked = (url,) if url is not None and url in self.urls else self.urls
        states = await asyncio.gather(*(self._state(one, _CONTROL_SECONDS, brief=True) for one in asked))
        return all(state.info is not None for state in states)

    async def post_json(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that one of a server's small endpoints answers; one worker is asked, once. Raises
        `EngineError`."""
        return await self._json("POST", f"{self.urls[0]}{path}", orjson.dumps(body))

    async def _abort_at(self, url: str, rid: str) -> bool:
        assert self._aborts is not None, "start() comes first"
        try:
            async with self._aborts.post(
                f"{url}/abort_request", json={"rid": rid}, headers=self._admin_headers
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            return False

    async def _state(self, url: str, seconds: float, *, brief: bool = False) -> WorkerState:
        """One server's own words. `brief`: only whether it lives."""
        try:
            async with asyncio.timeout(seconds):
                model_info = await self._first(url, "/model_info", "/get_model_info")
                details: list[dict[str, Any]] = [{}, {}]
                for index, paths in enumerate(
                    [] if brief else [("/server_info", "/get_server_info"), ("/v1/models",)]
                ):
                    with suppress(EngineError):  # they add details; a server without them is served all the same
                        details[index] = await self._first(url, *paths)
        except TimeoutError:
            return WorkerState(url, None, EngineUnreachable(f"{url}: no answer within {seconds:g} s"))
        except EngineError as error:
            return WorkerState(url, None, error)
        return WorkerState(url, engine_info(model_info, *details), None)

    async def _first(self, url: str, path: str, *others: str) -> dict[str, Any]:
        """The first of these paths that the server has: routers know the older names only."""
        try:
            return await self._get_json(url, path)
        except EngineRefusal as error:
            if error.status != 404 or not others:
                raise
            return await self._first(url, *others)

    async def _get_json(self, url: str, path: str) -> dict[str, Any]:
        parsed = await self._json("GET", f"{url}{path}", None)
        return parsed if isinstance(parsed, dict) else {}

    async def _json(self, method: str, address: str, data: bytes | None) -> Any:
        assert self._control is not None, "start() comes first"
        headers = {**self._headers, **({"Content-Type": "application/json"} if data is not None else {})}
        try:
            async with self._control.request(method, address, data=data, headers=headers) as response:
                body = await response.read()
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise EngineUnreachable(f"{address}: {error or type(error).__name__}") from error
        if response.status != 200:
            raise_http_error(response.status, body)
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise ContractError(f"{address} answers no JSON") from error


def _read_listed(workers: list[Any]) -> tuple[_Listed, ...]:
    """The HTTP workers of a router's list, as sglang-router 0.3.2 and smg 1.13.0 write it: `{url, is_healthy}`.

    With data parallelism a router lists one server once per rank, as `URL@RANK`."""
    found: dict[str, _Listed] = {}
    for worker in workers:
        url = worker.get("url") if isinstance(worker, dict) else worker
        if isinstance(url, str) and url.startswith(("http://", "https://")):
            url = re.sub(r"@\d+$", "", url).rstrip("/")
            healthy = not isinstance(worker, dict) or worker.get("is_healthy") is not False
            found[url] = _Listed(url, healthy and (url not in found or found[url].healthy))
    return tuple(found.values())

"""The trainer's client of the sidecar's control plane: `ControlClient` (sync) and `AsyncControlClient`.

    with ControlClient.from_env() as control:
        session = control.open_session(instance_id="task-7", sampling={"temperature": 1.0})
        ...
        control.finalize_session(session["session_id"], reward=1.0)
        segments = control.read_trajectory(session_id=session["session_id"])["data"]

Both have the same methods; those of the async client return awaitables. Every rule (paths, fields, time
limits, errors) is in `control_requests`; here is only the sending. A call is repeated only where it is
idempotent and the connection could not be made, so nothing is ever done twice.
Concurrency: `ControlClient` may be shared by threads; `AsyncControlClient` belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Self

import httpx

from trainer_hooks.control_calls import ControlCalls
from trainer_hooks.control_errors import ControlTransportError
from trainer_hooks.control_requests import ControlRequest, read_reply

Reply = dict[str, Any]

CONNECT_SECONDS = 10.0
RETRY_DELAYS = (0.2, 0.5, 1.0, 2.0)
"""Seconds before each repeat after a failed connect: a restarting sidecar is back within them."""


class ControlClient(ControlCalls[Reply]):
    """Blocking client; close it, or use it as a context manager."""

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(base_url, token)
        self._sleep = sleep
        # trust_env off: a proxy from the environment must not see the token.
        self._http = httpx.Client(transport=transport, headers=self._headers, trust_env=False)

    def send(self, request: ControlRequest) -> Reply:
        arguments = _http_arguments(self.base_url, request)
        delays = _retry_delays(request)
        while True:
            try:
                response = self._http.request(**arguments)
            except httpx.RequestError as error:
                delay = next(delays, None)
                if delay is None or not _never_sent(error):
                    raise _transport_error(self.base_url, request, error) from error
                self._sleep(delay)
            else:
                return read_reply(request, response.status_code, response.content)

    def close(self) -> None:
        """Close pooled connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncControlClient(ControlCalls[Awaitable[Reply]]):
    """asyncio client; close it, or use it as an async context manager."""

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(base_url, token)
        self._sleep = sleep
        self._http = httpx.AsyncClient(transport=transport, headers=self._headers, trust_env=False)

    async def send(self, request: ControlRequest) -> Reply:
        arguments = _http_arguments(self.base_url, request)
        delays = _retry_delays(request)
        while True:
            try:
                response = await self._http.request(**arguments)
            except httpx.RequestError as error:
                delay = next(delays, None)
                if delay is None or not _never_sent(error):
                    raise _transport_error(self.base_url, request, error) from error
                await self._sleep(delay)
            else:
                return read_reply(request, response.status_code, response.content)

    async def aclose(self) -> None:
        """Close pooled connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _http_arguments(base_url: str, request: ControlRequest) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "method": request.method,
        "url": base_url + request.path,
        "params": request.params,
        "timeout": httpx.Timeout(request.timeout_seconds, connect=CONNECT_SECONDS),
    }
    if request.body is not None:
        try:
            content = json.dumps(request.body, allow_nan=False)
        except ValueError as error:
            raise ValueError(
                f"{request.path} cannot carry this body as JSON: {error}; numbers must be finite"
            ) from None
        arguments |= {"content": content, "headers": {"content-type": "application/json"}}
    return arguments


def _retry_delays(request: ControlRequest) -> Iterator[float]:
    return iter(RETRY_DELAYS if request.idempotent else ())


def _never_sent(error: httpx.RequestError) -> bool:
    return isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))


def _transport_error(base_url: str, request: ControlRequest, error: httpx.RequestError) -> ControlTransportError:
    where = f"{request.method} {base_url}{request.path}"
    if _never_sent(error):
        return ControlTransportError(
            f"{where}: cannot connect ({error}); is the sidecar running, and does TITO_CONTROL_URL name its "
            "control port?",
            code="connect_failed",
        )
    if isinstance(error, httpx.TimeoutException):
        return ControlTransportError(f"{where}: no reply within {request.timeout_seconds:g} s", code="timeout")
    return ControlTransportError(f"{where}: the connection was lost ({error!r})", code="connection_lost")

"""The trainer's client of the sidecar's control plane: `ControlClient` (sync) and `AsyncControlClient`.

    with ControlClient.from_env() as control:
        session = control.open_session(instance_id="task-7", sampling={"temperature": 1.0})
        ...
        control.finalize_session(session["session_id"], reward=1.0)
        segments = control.read_trajectory(session_id=session["session_id"])["data"]

Both have the same methods, those of the async client return coroutines. What each takes, answers and promises is
said once, by the function of its name in `control_requests` and the type that it returns. A call is repeated where
it is idempotent and the connection could not be made, reads also where it broke: nothing is ever done twice.
Concurrency: `ControlClient` may be shared by threads; `AsyncControlClient` belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Self

import httpx

from trainer_hooks import control_requests as requests
from trainer_hooks.control_calls import RETRY_DELAYS, ControlCalls
from trainer_hooks.control_replies import ReplyBuffer, read_reply
from trainer_hooks.control_requests import ControlRequest

__all__ = ["RETRY_DELAYS", "AsyncControlClient", "ControlClient"]


def _call[**P, T](build: Callable[P, ControlRequest[T]]) -> Callable[Concatenate[ControlClient, P], T]:
    @wraps(build)
    def method(self: ControlClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(*args, **kwargs))

    return method


def _async_call[**P, T](
    build: Callable[P, ControlRequest[T]],
) -> Callable[Concatenate[AsyncControlClient, P], Coroutine[Any, Any, T]]:
    @wraps(build)
    async def method(self: AsyncControlClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(*args, **kwargs))

    return method


class ControlClient(ControlCalls):
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
        self._http = httpx.Client(transport=transport, headers=self._headers, trust_env=False, verify=self._verify)

    open_session = _call(requests.open_session)
    finalize_session = _call(requests.finalize_session)
    discard_session = _call(requests.discard_session)
    view_session = _call(requests.view_session)
    read_trajectory = _call(requests.read_trajectory)
    trajectory_stats = _call(requests.trajectory_stats)
    pause_rollout = _call(requests.pause_rollout)
    resume_rollout = _call(requests.resume_rollout)
    pause_state = _call(requests.pause_state)
    health = _call(requests.health)
    ready = _call(requests.ready)
    capabilities = _call(requests.capabilities)
    live_sidecars = _call(requests.live_sidecars)

    def send[T](self, request: ControlRequest[T]) -> T:
        """Send one call and read its reply. Raises `ControlError`."""
        arguments = self._arguments(request)
        delays = iter(RETRY_DELAYS)
        while True:
            try:
                with self._http.stream(**arguments) as response:
                    reply = ReplyBuffer(response.headers)
                    for chunk in response.iter_bytes():
                        reply.add(chunk)
            except httpx.RequestError as error:
                self._sleep(self._next_delay(request, delays, error))
            else:
                return read_reply(request, response.status_code, reply)

    def close(self) -> None:
        """Close pooled connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncControlClient(ControlCalls):
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
        self._http = httpx.AsyncClient(
            transport=transport, headers=self._headers, trust_env=False, verify=self._verify
        )

    open_session = _async_call(requests.open_session)
    finalize_session = _async_call(requests.finalize_session)
    discard_session = _async_call(requests.discard_session)
    view_session = _async_call(requests.view_session)
    read_trajectory = _async_call(requests.read_trajectory)
    trajectory_stats = _async_call(requests.trajectory_stats)
    pause_rollout = _async_call(requests.pause_rollout)
    resume_rollout = _async_call(requests.resume_rollout)
    pause_state = _async_call(requests.pause_state)
    health = _async_call(requests.health)
    ready = _async_call(requests.ready)
    capabilities = _async_call(requests.capabilities)
    live_sidecars = _async_call(requests.live_sidecars)

    async def send[T](self, request: ControlRequest[T]) -> T:
        """Send one call and read its reply. Raises `ControlError`."""
        arguments = self._arguments(request)
        delays = iter(RETRY_DELAYS)
        while True:
            try:
                async with self._http.stream(**arguments) as response:
                    reply = ReplyBuffer(response.headers)
                    async for chunk in response.aiter_bytes():
                        reply.add(chunk)
            except httpx.RequestError as error:
                await self._sleep(self._next_delay(request, delays, error))
            else:
                return read_reply(request, response.status_code, reply)

    async def aclose(self) -> None:
        """Close pooled connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

"""What the sync and the async client share: whom they call, with which token, and how HTTP sees a call.

Immutable after construction; the concurrency rule is that of the client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, Self

import httpx

from trainer_hooks.control_errors import ControlTransportError
from trainer_hooks.control_requests import ControlRequest

CONNECT_SECONDS = 10.0
RETRY_DELAYS = (0.2, 0.5, 1.0, 2.0)
"""Seconds before each repeat after a failed connect: a restarting sidecar is back within them."""


class ControlCalls:
    """A control plane's address and token."""

    def __init__(self, base_url: str, token: str | None) -> None:
        self.base_url = _checked_url(base_url)
        # Without TLS nobody needs the public roots; reading them takes 50 ms of CPU for each client, and a weight
        # update makes one for each sidecar.
        self._verify = self.base_url.startswith("https://")
        # A compressed reply could not be put in its place as it comes.
        self._headers = {"accept-encoding": "identity"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    @classmethod
    def from_env(cls) -> Self:
        """The client of the one URL in `TITO_CONTROL_URL`, with `TITO_CONTROL_TOKEN`. Raises ValueError."""
        clients = cls.all_from_env()
        if len(clients) != 1:
            raise ValueError(f"TITO_CONTROL_URL names {len(clients)} sidecars; use all_from_env(), or name one URL")
        return clients[0]

    @classmethod
    def all_from_env(cls) -> list[Self]:
        """One client per URL of the comma list `TITO_CONTROL_URL`, with `TITO_CONTROL_TOKEN`. Raises ValueError."""
        urls = [url.strip() for url in os.environ.get("TITO_CONTROL_URL", "").split(",") if url.strip()]
        token = os.environ.get("TITO_CONTROL_TOKEN")
        if not urls:
            raise ValueError("TITO_CONTROL_URL is not set; name the sidecar's control plane, host and port")
        if not token:
            raise ValueError(
                "TITO_CONTROL_TOKEN is not set; give the token the sidecar was started with, or the one in its "
                "state directory's control-token file"
            )
        return [cls(url, token) for url in urls]

    def _arguments(self, request: ControlRequest[Any]) -> dict[str, Any]:
        """For httpx. Raises ValueError for a body that JSON cannot carry."""
        arguments: dict[str, Any] = {
            "method": request.method,
            "url": self.base_url + request.path,
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

    def _next_delay(
        self, request: ControlRequest[Any], delays: Iterator[float], error: httpx.RequestError
    ) -> float:
        """Seconds until the call may be repeated. Raises `ControlTransportError` where it may not."""
        lost = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
        may_repeat = _never_sent(error) or (lost and request.repeat_if_lost)
        delay = next(delays, None) if may_repeat and request.idempotent else None
        if delay is None:
            raise _transport_error(self.base_url, request, error) from error
        return delay


def _never_sent(error: httpx.RequestError) -> bool:
    return isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))


def _transport_error(
    base_url: str, request: ControlRequest[Any], error: httpx.RequestError
) -> ControlTransportError:
    where = f"{request.method} {base_url}{request.path}"
    if _never_sent(error):
        return ControlTransportError(
            f"{where}: cannot connect ({error}); is the sidecar running, and does TITO_CONTROL_URL name its "
            "control port?",
            code="connect_failed",
        )
    drain_id = (request.body or {}).get("drain_id")
    remedy = f"; drain_id={drain_id!r} gets what this read has drained" if drain_id is not None else ""
    if isinstance(error, httpx.TimeoutException):
        return ControlTransportError(
            f"{where}: no reply within {request.timeout_seconds:g} s{remedy}", code="timeout"
        )
    return ControlTransportError(f"{where}: the connection was lost ({error!r}){remedy}", code="connection_lost")


def _checked_url(base_url: str) -> str:
    if not base_url.startswith(("http://", "https://")):
        raise ValueError(f"the control URL is {base_url!r}; it must start with http:// or https://")
    return base_url.rstrip("/")

"""The control plane: the trainer's listener, with a token on everything but the probes.

The agent shares the machine and will use whatever it can reach, so loopback is no protection.
"""

from __future__ import annotations

import hmac

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.protocols.errors import RequestError
from sidecar.control.metrics import MetricsRoute
from sidecar.control.rollout import RolloutRoutes
from sidecar.control.sessions import SessionRoutes
from sidecar.control.sidecars import SidecarRoutes
from sidecar.control.status import StatusRoutes
from sidecar.control.trajectories import TrajectoryRoutes
from sidecar.sessions.errors import refusal_of
from sidecar.store.protocol import StoreError
from sidecar.web.refusals import on_bug, on_not_found, on_request_error, refusal_response

_OPEN_PATHS = ("/health", "/ready")


async def _on_store_error(request: Request, error: Exception) -> Response:
    return refusal_response(refusal_of(error))


_HANDLERS = {
    RequestError: on_request_error,
    StoreError: _on_store_error,
    HTTPException: on_not_found,
    Exception: on_bug,
}


class TokenGuard:
    """Middleware: `Authorization: Bearer TOKEN`, compared in constant time, before any route is looked up."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or answer 401."""
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS or self._authorized(scope):
            await self._app(scope, receive, send)
            return
        refusal = RequestError(
            401,
            "the control plane needs its token; send Authorization: Bearer $TITO_CONTROL_TOKEN",
            kind="authentication_error",
            code="invalid_control_token",
        )
        await refusal_response(refusal)(scope, receive, send)

    def _authorized(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)


def build_control(
    token: str,
    sessions: SessionRoutes,
    sidecars: SidecarRoutes,
    trajectories: TrajectoryRoutes,
    rollout: RolloutRoutes,
    status: StatusRoutes,
    metrics: MetricsRoute,
) -> Starlette:
    """The ASGI app of `--control-listen`."""
    return Starlette(
        routes=[
            *sessions.routes(),
            *sidecars.routes(),
            *trajectories.routes(),
            *rollout.routes(),
            *status.routes(),
            *metrics.routes(),
        ],
        middleware=[Middleware(TokenGuard, token=token)],
        exception_handlers=_HANDLERS,
    )


def build_probes(status: StatusRoutes) -> Starlette:
    """The ASGI app of `--health-listen`."""
    return Starlette(routes=status.probe_routes(), exception_handlers=_HANDLERS)

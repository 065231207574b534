"""Pause, resume and pause_state: what a training loop calls around a weight update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters.protocols import fields
from adapters.protocols.errors import RequestError, bad_field
from sidecar.control.fields import read_fields
from sidecar.generation.controller import Controller
from sidecar.generation.engine_state import EngineState
from sidecar.generation.gate import PauseConflict, PauseExpired, instance_scope, session_scope
from sidecar.generation.pauses import PAUSE_MODES, EngineNotReady, HoldRefused, PauseRequest, Pauses
from sidecar.generation.workers import Workers
from sidecar.sessions.registry import check_session_id

_PAUSE_FIELDS = (
    "reason", "mode", "pause_id", "timeout_seconds", "lease_seconds", "session_id", "instance_id"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RolloutRoutes:
    """The three routes."""

    pauses: Pauses
    controller: Controller
    engine: EngineState
    workers: Workers

    def routes(self) -> list[Route]:
        """All routes."""
        return [
            Route("/v1/rollout/pause", self.pause, methods=["POST"]),
            Route("/v1/rollout/resume", self.resume, methods=["POST"]),
            Route("/v1/rollout/pause_state", self.state, methods=["GET"]),
        ]

    async def pause(self, request: Request) -> Response:
        """`POST /v1/rollout/pause`: everything, a session or an instance, in mode abort, drain or hold."""
        body = await read_fields(request, _PAUSE_FIELDS)
        try:
            reply = await self.pauses.pause(self.controller, self.engine, self.workers, _pause_request(body))
        except PauseExpired as error:
            raise _conflict(str(error), "pause_expired") from error
        except PauseConflict as error:
            raise _conflict(str(error), "pause_conflict") from error
        except HoldRefused as error:
            raise RequestError(400, str(error), param="mode", code="hold_unsupported") from error
        return _json(reply)

    async def resume(self, request: Request) -> Response:
        """`POST /v1/rollout/resume`: one pause, or all without `pause_id`; `version` is compared and logged."""
        body = await read_fields(request, ("pause_id", "version", "reason"))
        try:
            reply = await self.pauses.resume(self.controller, self.engine, fields.text(body, "pause_id"))
        except PauseExpired as error:
            raise _conflict(str(error), "pause_expired") from error
        except EngineNotReady as error:
            raise RequestError(
                503, str(error), kind="server_error", code="backend_not_ready", retry_after=1
            ) from error
        self.pauses.compare_version(body.get("version"), self.controller.weight_version)
        return _json(reply)

    async def state(self, request: Request) -> Response:
        """`GET /v1/rollout/pause_state`."""
        return _json(self.pauses.state(self.controller, self.engine))


def _pause_request(body: dict[str, Any]) -> PauseRequest:
    scope = _scope(body)
    mode = body.get("mode")
    if mode is not None and mode not in PAUSE_MODES:
        raise bad_field("mode", mode, f"send one of {', '.join(PAUSE_MODES)}")
    if mode == "hold" and scope is not None:
        name = "session_id" if body.get("session_id") is not None else "instance_id"
        raise bad_field(
            name, body[name], "the engine's own pause, which mode hold relies on, holds all; leave it out"
        )
    timeout = fields.number(body, "timeout_seconds", 0, 3600)
    return PauseRequest(
        scope=scope,
        mode=mode,
        reason=fields.text(body, "reason"),
        pause_id=fields.text(body, "pause_id"),
        timeout=30.0 if timeout is None else timeout,
        lease_seconds=fields.number(body, "lease_seconds", 0.001, 86400),
    )


def _scope(body: dict[str, Any]) -> str | None:
    session_id, instance_id = fields.text(body, "session_id"), fields.text(body, "instance_id")
    if session_id is not None and instance_id is not None:
        raise bad_field("instance_id", instance_id, "a pause has one scope; name a session or an instance")
    if instance_id == "":
        raise bad_field("instance_id", instance_id, "name an instance")
    if session_id is not None:
        return session_scope(check_session_id(session_id))
    return None if instance_id is None else instance_scope(instance_id)


def _conflict(message: str, code: str) -> RequestError:
    return RequestError(409, message, kind="conflict_error", code=code, retry=False)


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")

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
from sidecar.generation.gate import PauseConflict, PauseExpired
from sidecar.generation.pauses import EngineNotReady, Pauses

_PAUSE_FIELDS = (
    "reason", "mode", "pause_id", "timeout_seconds", "lease_seconds", "session_id", "instance_id"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RolloutRoutes:
    """The three routes."""

    pauses: Pauses
    controller: Controller
    engine: EngineState

    def routes(self) -> list[Route]:
        """All routes."""
        return [
            Route("/v1/rollout/pause", self.pause, methods=["POST"]),
            Route("/v1/rollout/resume", self.resume, methods=["POST"]),
            Route("/v1/rollout/pause_state", self.state, methods=["GET"]),
        ]

    async def pause(self, request: Request) -> Response:
        """`POST /v1/rollout/pause`, for all sessions, in mode `abort`."""
        body = await read_fields(request, _PAUSE_FIELDS)
        for name in ("session_id", "instance_id"):
            if body.get(name) is not None:
                raise bad_field(name, body[name], "this version pauses all sessions at once; leave it out")
        if body.get("mode", "abort") != "abort":
            raise bad_field("mode", body["mode"], "this version pauses in mode abort")
        timeout = fields.number(body, "timeout_seconds", 0, 3600)
        try:
            reply = await self.pauses.pause(
                self.controller,
                mode="abort",
                reason=fields.text(body, "reason"),
                pause_id=fields.text(body, "pause_id"),
                timeout=30.0 if timeout is None else timeout,
                lease_seconds=fields.number(body, "lease_seconds", 0.001, 86400),
            )
        except PauseExpired as error:
            raise _conflict(str(error), "pause_expired") from error
        except PauseConflict as error:
            raise _conflict(str(error), "pause_conflict") from error
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
        return _json(self.pauses.state(self.controller))


def _conflict(message: str, code: str) -> RequestError:
    return RequestError(409, message, kind="conflict_error", code=code, retry=False)


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")

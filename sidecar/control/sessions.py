"""Session routes of the control plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters.protocols import fields
from adapters.protocols.errors import RequestError, bad_field
from sidecar.control.fields import read_fields
from sidecar.generation.sampling import check_pin
from sidecar.replicas.forwarding import Forwarding, SharedCall
from sidecar.sessions.keys import session_key
from sidecar.sessions.registry import Registry

_LONGEST_WAIT = 3600.0


@dataclass(frozen=True, slots=True)
class SessionRoutes:
    """`base_url` is what agents use, without `/v1`; `secret` signs their keys."""

    registry: Registry
    forwarding: Forwarding
    base_url: str
    secret: bytes

    def routes(self) -> list[Route]:
        """All routes."""
        return [
            Route("/session/open", self.open, methods=["POST"]),
            Route("/session/finalize", self.finalize, methods=["POST"]),
            Route("/session/discard", self.discard, methods=["POST"]),
            Route("/session/{session_id}", self.view, methods=["GET"]),
        ]

    async def open(self, request: Request) -> Response:
        """`POST /session/open`."""
        body = await read_fields(
            request, ("session_id", "instance_id", "run_id", "metadata", "sampling", "hand_over")
        )
        asked = fields.text(body, "session_id")
        row = {
            "instance_id": fields.text(body, "instance_id"),
            "run_id": fields.text(body, "run_id"),
            "metadata": fields.mapping(body, "metadata"),
            "sampling": _pin(fields.mapping(body, "sampling")),
        }

        hand_over = fields.boolean(body, "hand_over", False)

        async def here() -> dict[str, Any]:
            session = await self.registry.open(asked, row, hand_over=hand_over)
            return {
                "session_id": session.session_id,
                "base_url": f"{self.base_url}/v1",
                "anthropic_base_url": self.base_url,
                "api_key": session_key(session.session_id, self.secret),
            }

        return await self._shared(request, asked, here)

    async def finalize(self, request: Request) -> Response:
        """`POST /session/finalize`."""
        known = ("session_id", "instance_id", "label", "reward", "anchor_step_id", "timeout_seconds")
        body = await read_fields(request, known)
        timeout = fields.number(body, "timeout_seconds", 0, _LONGEST_WAIT)
        session_id, reward = _required(body, "session_id"), _reward(body.get("reward"))

        async def here() -> dict[str, Any]:
            return await self.registry.finalize(
                session_id,
                instance_id=fields.text(body, "instance_id"),
                label=body.get("label"),
                reward=reward,
                anchor_step_id=fields.text(body, "anchor_step_id"),
                timeout=60.0 if timeout is None else timeout,
            )

        return await self._shared(request, session_id, here)

    async def discard(self, request: Request) -> Response:
        """`POST /session/discard`."""
        body = await read_fields(request, ("session_id",))
        session_id = _required(body, "session_id")
        return await self._shared(request, session_id, lambda: self.registry.discard(session_id))

    async def view(self, request: Request) -> Response:
        """`GET /session/{id}`."""
        session_id = request.path_params["session_id"]
        return await self._shared(request, session_id, lambda: self.registry.view(session_id))

    async def _shared(
        self, request: Request, session_id: str | None, here: Callable[[], Awaitable[dict[str, Any]]]
    ) -> Response:
        """The reply of whichever replica holds the session: any of them may be asked."""

        async def answer(again: bool) -> Response:  # all of these may be repeated
            return _json(await here())

        body = await request.body()
        hop = self.forwarding.hop_of(request, body)
        return await self.forwarding.answer(SharedCall("control", request, body, session_id or "", answer, hop))


def _required(body: dict[str, Any], name: str) -> str:
    value = fields.text(body, name)
    if not value:
        raise bad_field(name, value, "name the session")
    return value


def _reward(value: Any) -> Any:
    numbers = value.values() if isinstance(value, dict) else [value]
    for number in numbers:
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
            raise bad_field("reward", value, "send a number, or an object of numbers")
    return value


def _pin(sampling: dict[str, Any]) -> dict[str, Any]:
    try:
        return check_pin(sampling, "sampling")
    except ValueError as error:
        raise RequestError(400, str(error), param="sampling") from error


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")

"""`GET /v1/models`: the engine's model, or what was known of it at start-up when the engine does not answer."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from starlette.requests import Request
from starlette.responses import Response

from adapters.protocols import chat_replies
from adapters.protocols.errors import RequestError
from sidecar.gateway.identity import IdentityRules, resolve_session
from sidecar.generation.engine_state import EngineState


@dataclass(frozen=True, slots=True)
class Models:
    """The endpoints. `created` is the sidecar's start in Unix seconds."""

    engine: EngineState
    identity: IdentityRules
    created: int

    async def handle_list(self, request: Request) -> Response:
        """The list with its one entry."""
        self._authorize(request)
        info = await self.engine.refresh()
        return _json(chat_replies.model_list(info.model_id, info.context_length, self.created))

    async def handle_one(self, request: Request) -> Response:
        """The entry by id. Raises `RequestError` 404 for another id."""
        self._authorize(request)
        info = await self.engine.refresh()
        wanted = request.path_params["model_id"]
        if wanted != info.model_id:
            raise RequestError(
                404,
                f"the model {wanted!r} does not exist; the engine serves {info.model_id!r}",
                code="model_not_found",
            )
        return _json(chat_replies.model_entry(info.model_id, info.context_length, self.created))

    def _authorize(self, request: Request) -> None:
        if self.identity.keys_required:
            resolve_session(self.identity, request.headers, request.path_params.get("session_id"), None)


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")

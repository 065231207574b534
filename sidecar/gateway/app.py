"""The data plane: what agents can reach, and nothing else. Unknown paths are 404 in the client's envelope."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters.protocols.errors import RequestError
from sidecar.gateway.chat import ChatCompletions
from sidecar.gateway.models import Models
from sidecar.tito.errors import MessageError
from sidecar.web.refusals import on_bug, on_message_error, on_not_found, on_request_error


def build_gateway(chat: ChatCompletions, models: Models) -> Starlette:
    """The ASGI app of `--listen`."""

    async def completions(request: Request) -> Response:
        return await chat.handle(request)

    async def list_models(request: Request) -> Response:
        return await models.handle_list(request)

    async def get_model(request: Request) -> Response:
        return await models.handle_one(request)

    routes = []
    for prefix in ("/v1", "/sessions/{session_id}/v1"):
        routes += [
            Route(f"{prefix}/chat/completions", completions, methods=["POST"]),
            Route(f"{prefix}/models", list_models, methods=["GET"]),
            Route(f"{prefix}/models/{{model_id:path}}", get_model, methods=["GET"]),
        ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            RequestError: on_request_error,
            MessageError: on_message_error,
            HTTPException: on_not_found,
            Exception: on_bug,
        },
    )
    app.router.redirect_slashes = False  # a path with a slash too many is unknown, as on OpenAI's own server
    return app

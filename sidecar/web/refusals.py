"""`RequestError` as an HTTP response in OpenAI's envelope, for both planes."""

from __future__ import annotations

import logging

import orjson
from starlette.requests import Request
from starlette.responses import Response

from adapters.protocols.chat_replies import error_body
from adapters.protocols.errors import RequestError
from sidecar.tito.errors import MessageError

log = logging.getLogger(__name__)


def refusal_response(error: RequestError) -> Response:
    """The response; `x-should-retry` and `Retry-After` tell SDKs what to do."""
    headers = {}
    if not error.retry:
        headers["x-should-retry"] = "false"
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return Response(
        orjson.dumps(error_body(error)), status_code=error.status, headers=headers, media_type="application/json"
    )


async def on_request_error(request: Request, error: Exception) -> Response:
    """Exception handler for `RequestError`."""
    assert isinstance(error, RequestError)
    return refusal_response(error)


async def on_message_error(request: Request, error: Exception) -> Response:
    """Exception handler for `MessageError`."""
    assert isinstance(error, MessageError)
    return refusal_response(RequestError(400, str(error), param=error.param))


async def on_not_found(request: Request, error: Exception) -> Response:
    """Exception handler for unknown paths and methods."""
    status = getattr(error, "status_code", 404)
    what, code = ("there is no", "not_found") if status == 404 else ("wrong method for", "method_not_allowed")
    response = refusal_response(
        RequestError(status, f"{what} {request.method} {request.url.path}", kind="not_found_error", code=code)
    )
    response.headers.update(getattr(error, "headers", None) or {})  # Allow
    return response


async def on_bug(request: Request, error: Exception) -> Response:
    """Exception handler of last resort: the agent learns nothing, the log everything."""
    log.exception("error in %s %s", request.method, request.url.path, exc_info=error)
    return refusal_response(
        RequestError(500, "internal error; the sidecar's log has the details", kind="server_error")
    )

"""Reading a request body within a limit."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from adapters.protocols.errors import RequestError


async def read_body(request: Request, limit: int) -> bytes:
    """The body. Raises `RequestError` 413 beyond `limit` bytes: unread if the length is announced."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise RequestError(499, "the client closed the connection", retry=False) from None
    return bytes(body)


def _too_large(limit: int) -> RequestError:
    return RequestError(413, f"the body is larger than {limit} bytes; see --max-body", code="body_too_large")

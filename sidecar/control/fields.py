"""A control-plane request body, with errors that name field, value and remedy."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request

from adapters.protocols.errors import RequestError, bad_field
from sidecar.web.body import read_body

_LIMIT = 2**20


async def read_fields(request: Request, known: tuple[str, ...]) -> dict[str, Any]:
    """The JSON object of a request; an empty body is the empty object. Raises `RequestError` 400.

    Unknown fields are refused: a misspelt `timeout_second` must not be a default in silence."""
    data = request._body = await read_body(request, _LIMIT)  # where Starlette looks for it when it is asked again
    if not data.strip():
        return {}
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the body is not JSON: {error}; send a JSON object") from error
    if not isinstance(body, dict):
        raise RequestError(400, "the body is no JSON object")
    for name in body:
        if name not in known:
            raise bad_field(name, body[name], f"known fields are {', '.join(known)}")
    return body

"""Builds the answers that the interceptor gives itself, in the error envelope that OpenAI's clients read.

Promise: every refusal is JSON ``{"error": {"message", "type", "param", "code"}}`` with its length.
Concurrency: pure functions; each call makes a new response.
"""

import orjson
from mitmproxy import http

from sidecar.intercept.hosts import Rules
from sidecar.intercept.spec import format_address


def host_not_allowed(host: str, port: int, rules: Rules) -> http.Response:
    """Return the 403 for a destination that is on no list."""
    return _refusal(
        403,
        f"tito-sidecar's proxy does not connect to {format_address(host, port)}: it serves only "
        f"{', '.join((*rules.llm.names, *rules.allowed.names))}; whoever runs it may add the host to "
        "--intercept-hosts (answered by the engine) or --intercept-allow (passed through)",
        kind="forbidden",
        code="host_not_allowed",
    )


def websocket_not_supported() -> http.Response:
    """Return the 400 for a WebSocket handshake."""
    return _refusal(
        400,
        "tito-sidecar's proxy does not carry WebSockets; use the HTTP API",
        kind="invalid_request_error",
        code="websocket_not_supported",
    )


def http2_not_supported() -> http.Response:
    """Return the 400 for HTTP/2 that starts without TLS and ALPN."""
    return _refusal(
        400,
        "tito-sidecar's proxy speaks HTTP/1.1; do not start HTTP/2 with prior knowledge",
        kind="invalid_request_error",
        code="http2_not_supported",
    )


def _refusal(status: int, message: str, *, kind: str, code: str) -> http.Response:
    body = orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    return http.Response.make(status, body, {"content-type": "application/json"})

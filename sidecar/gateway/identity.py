"""Which session a call belongs to. Pure; the order of the rules is the contract of the data plane.

A session key decides. Else the first of: `X-Session-Id`, `X-SMG-Routing-Key`, the path, the body, `--session-id`,
and on loopback one session per process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adapters.protocols.errors import RequestError
from sidecar.sessions.keys import looks_like_key, session_of


@dataclass(frozen=True, slots=True)
class IdentityRules:
    """`fallback` is the session of calls that name none; None: they are refused."""

    secret: bytes
    keys_required: bool
    fallback: str | None


def resolve_session(
    rules: IdentityRules, headers: Mapping[str, str], path_session: str | None, body_session: str | None
) -> str:
    """The session id of a call. Raises `RequestError` 400, 401 or 403."""
    named = [headers.get("x-session-id"), headers.get("x-smg-routing-key"), path_session, body_session]
    key = _api_key(headers)
    if key is not None and (rules.keys_required or looks_like_key(key)):
        session_id = session_of(key, rules.secret) if looks_like_key(key) else None
        if session_id is None:
            raise _unauthorized("the API key is no valid session key")
        for other in named:
            if other is not None and other != session_id:
                raise RequestError(
                    403,
                    f"the session key is for another session than {other!r}",
                    kind="permission_error",
                    code="wrong_session",
                )
        return session_id
    if rules.keys_required:
        raise _unauthorized("a session key is needed as API key; POST /session/open on the control plane gives it")
    chosen = next((session for session in named if session is not None), rules.fallback)
    if chosen is None:
        raise RequestError(
            400,
            "the request names no session; send X-Session-Id, use base_url .../sessions/{session_id}/v1, "
            "or start the sidecar with --session-id",
            param="session_id",
        )
    return chosen


def _api_key(headers: Mapping[str, str]) -> str | None:
    authorization = headers.get("authorization", "")
    if authorization[:7].lower() == "bearer ":
        return authorization[7:].strip()
    return headers.get("x-api-key")


def _unauthorized(message: str) -> RequestError:
    return RequestError(401, message, kind="authentication_error", code="invalid_api_key")

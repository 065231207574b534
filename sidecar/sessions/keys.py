"""Session keys: what an agent sends as its API key, so that it can reach its own session and no other. Pure.

A key is the session id and its HMAC under the session secret: every replica can check it, nothing is stored.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

_PREFIX = "tito-"


def session_key(session_id: str, secret: bytes) -> str:
    """The key of a session."""
    return f"{_PREFIX}{_encode(session_id.encode())}.{_mac(session_id, secret)}"


def looks_like_key(token: str) -> bool:
    """Whether a bearer token claims to be a session key; agents send all kinds of API keys."""
    return token.startswith(_PREFIX) and "." in token


def session_of(key: str, secret: bytes) -> str | None:
    """The session that a key opens, or None if it is no valid key."""
    encoded, _, mac = key.removeprefix(_PREFIX).rpartition(".")
    try:
        session_id = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except ValueError:
        return None
    # as bytes: `compare_digest` refuses strings that are not ASCII, and anybody may send one
    return session_id if hmac.compare_digest(mac.encode(), _mac(session_id, secret).encode()) else None


def _mac(session_id: str, secret: bytes) -> str:
    return _encode(hmac.new(secret, session_id.encode(), hashlib.sha256).digest()[:24])


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

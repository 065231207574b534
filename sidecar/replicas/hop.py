"""What one replica says to another with a call that it forwards: whose call it is, and that it is forwarded. Pure.

The header is signed with the session secret, which all replicas share, over the call it comes with: an agent can
neither make one nor use one again for another session.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass

import orjson

HOP_HEADER = "x-tito-forwarded"


@dataclass(frozen=True, slots=True)
class Hop:
    """`session_id` as the first replica resolved it; `host` is where an intercepted agent meant to call."""

    session_id: str
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Signed:
    """What is signed besides the hop."""

    method: str
    path: bytes
    """As sent, without the query."""
    body: bytes


def write_hop(hop: Hop, call: Signed, secret: bytes) -> str:
    """The header's value."""
    said = base64.urlsafe_b64encode(orjson.dumps([hop.session_id, hop.host]))
    return f"{said.decode()}.{_mac(said, call, secret)}"


def read_hop(value: str, call: Signed, secret: bytes) -> Hop | None:
    """The hop, or None if the value is not from a replica with this secret, or is that of another call."""
    said, _, mac = value.partition(".")
    if not hmac.compare_digest(mac.encode(), _mac(said.encode(), call, secret).encode()):
        return None
    session_id, host = orjson.loads(base64.urlsafe_b64decode(said))
    return Hop(session_id, host)


def _mac(said: bytes, call: Signed, secret: bytes) -> str:
    digest = hmac.new(secret, b"tito-forwarded\n", hashlib.sha256)
    for part in (said, call.method.encode(), call.path, hashlib.sha256(call.body).digest()):
        digest.update(b"%d:%b" % (len(part), part))
    return digest.hexdigest()

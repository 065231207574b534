"""One call sent to the replica that holds its session, and the reply passed on as it comes.

Bytes pass through unread: events of a stream leave as they arrive, heartbeats too, and a slow agent slows the other
replica down as if it were connected to it. Cancelling closes the connection: so a disconnect is passed on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import aiohttp
import orjson
from starlette.types import Scope, Send
from yarl import URL

from adapters.protocols.chat_replies import error_body
from sidecar.sessions.errors import unavailable
from sidecar.web.connection import break_off

_CONNECTION_HEADERS = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade expect".split()
)
_NOT_SENT = _CONNECTION_HEADERS | {b"host", b"content-length"}
_NOT_RETURNED = _CONNECTION_HEADERS | {b"date", b"server"}
_ELSEWHERE = ("not_owner", "shutting_down", "session_moved")
"""Codes of a 503 after which the same call may go to another replica: nothing was done."""
REFUSED_HOP = "hop_refused"
_LONGEST_REFUSAL = 65536


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a relay. `answered`: the peer has a reply. Else `sent` says whether the other replica may have
    begun to work on the call, `code` what it said if it refused, `reason` why there is no reply."""

    answered: bool = False
    sent: bool = False
    code: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is sent."""

    method: str
    url: str
    headers: list[tuple[str, str]]
    body: bytes


def headers_to_send(given: Iterable[tuple[bytes, bytes]], without: frozenset[bytes]) -> list[tuple[str, str]]:
    """An agent's headers as another replica gets them."""
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in given
        if name.lower() not in _NOT_SENT and name.lower() not in without
    ]


class Relay:
    """One attempt. `run` once."""

    def __init__(self, client: aiohttp.ClientSession, outgoing: Outgoing, scope: Scope, send: Send) -> None:
        self._client = client
        self._outgoing = outgoing
        self._scope = scope
        self._send = send
        self._begun = False
        """Bytes have left to the agent: they cannot be taken back."""
        self._events = False

    async def run(self) -> Outcome:
        """Send the call and pass the reply on."""
        try:
            return await self._run()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return Outcome(reason=str(error) or type(error).__name__)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            return await self.end(f"{type(error).__name__}: {error}")

    async def end(self, reason: str) -> Outcome:
        """There will be no more of the reply: tell the agent, if it has some of it."""
        if not self._begun:
            return Outcome(sent=True, reason=reason)
        if self._events:
            refusal = unavailable(f"the replica that answered is gone: {reason}", "replica_lost")
            await self._send_body(b"data: %b\n\n" % orjson.dumps(error_body(refusal)))
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            break_off(self._scope)
        return Outcome(answered=True, reason=reason)

    async def _run(self) -> Outcome:
        outgoing = self._outgoing
        async with self._client.request(
            outgoing.method,
            URL(outgoing.url, encoded=True),
            data=outgoing.body,
            headers=outgoing.headers,
            allow_redirects=False,
        ) as reply:
            first = b""
            if reply.status in (403, 503) and (reply.content_length or 0) < _LONGEST_REFUSAL:
                first = await reply.read()
                code = _code(first)
                if code == REFUSED_HOP or code in _ELSEWHERE:
                    return Outcome(sent=code == "session_moved", code=code, reason=f"it answers {code}")
            await self._begin(reply)
            if first:
                await self._send_body(first)
            async for chunk in reply.content.iter_any():
                await self._send_body(chunk)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            return Outcome(answered=True)

    async def _begin(self, reply: aiohttp.ClientResponse) -> None:
        headers = [(name.lower(), value) for name, value in reply.raw_headers if name.lower() not in _NOT_RETURNED]
        self._events = reply.content_type == "text/event-stream"
        self._begun = True
        await self._send({"type": "http.response.start", "status": reply.status, "headers": headers})

    async def _send_body(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


def _code(body: bytes) -> str | None:
    try:
        error = orjson.loads(body)["error"]
        code = error["code"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return None
    return code if isinstance(code, str) else None

"""Calls of sessions that another replica holds: sent there, or answered here once that replica's lease is over.

Promise: a call makes one hop at most. It waits for a replica that does not answer until its lease ends, then this
one takes the session and goes on; a call that may have reached the other replica is then treated as a marked retry,
so that no step is made twice. It waits no longer than about a lease and a half, then 503. One event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import aiohttp
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adapters.protocols.errors import RequestError
from sidecar.replicas.claims import Claims
from sidecar.replicas.holder_watch import HolderWatch
from sidecar.replicas.hop import HOP_HEADER, Hop, Signed, read_hop, write_hop
from sidecar.replicas.relay import REFUSED_HOP, Outcome, Outgoing, Relay, headers_to_send
from sidecar.sessions.errors import unavailable
from sidecar.store.protocol import LeaseRow, SessionHeld

log = logging.getLogger(__name__)

_RETRY_HEADER = "x-stainless-retry-count"
_OUR_HEADERS = frozenset((HOP_HEADER.encode(), b"x-tito-intercept-secret", b"x-tito-original-host"))
_LONGEST_PAUSE = 0.5
_CONNECT_SECONDS = 2.0

Here = Callable[[bool], Awaitable[Response]]
"""Answers the call in this process. The argument says that an earlier attempt may have reached another replica.
Raises `SessionHeld` while another one holds the session."""


@dataclass(frozen=True, slots=True)
class SharedCall:
    """A call that any replica may get, and whose session one of them holds."""

    plane: Literal["data", "control"]
    request: Request
    body: bytes
    session_id: str
    here: Here
    hop: Hop | None = None
    """It comes from another replica."""
    host: str | None = None
    """See `Hop.host`."""


class Forwarding:
    """`secret` is the session secret, which all replicas share."""

    def __init__(self, claims: Claims, secret: bytes, lease_seconds: float) -> None:
        self.claims = claims
        self.patience = 1.5 * lease_seconds + 2
        """Seconds that a call waits for a replica that does not answer."""
        self.watch = HolderWatch(claims.seconds_left)
        self._secret = secret
        self._client: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections to other replicas."""
        if self._client is not None:
            await self._client.close()

    @property
    def client(self) -> aiohttp.ClientSession:
        """Made when the first call is forwarded."""
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # a proxy of the environment must not see sessions
            )
        return self._client

    def hop_of(self, request: Request, body: bytes) -> Hop | None:
        """What another replica says of a call; None for one that comes from a client. Raises `RequestError` 403."""
        value = request.headers.get(HOP_HEADER)
        if value is None:
            return None
        hop = read_hop(value, _signed(request, body), self._secret)
        if hop is None:
            raise RequestError(
                403,
                f"{HOP_HEADER} is not signed with this replica's session secret; leave it out, or give all "
                "replicas the same --session-secret",
                kind="permission_error",
                code=REFUSED_HOP,
            )
        return hop

    async def answer(self, call: SharedCall) -> Response:
        """The reply, from here or from the replica that holds the session. Raises what `here` raises but
        `SessionHeld`, and `RequestError` 503."""
        holder = self.claims.remembered(call.session_id) if call.hop is None else None
        if holder is None:
            try:
                return await call.here(False)
            except SessionHeld as held:
                if call.hop is not None:
                    raise unavailable(f"this replica does not hold it: {held}", "not_owner") from held
                holder = held.holder
        return _SharedResponse(self, call, holder)

    def outgoing(self, call: SharedCall, holder: LeaseRow, again: bool) -> Outgoing | None:
        """The call as it is sent to a replica; None for one that cannot be reached yet, since it is starting."""
        url = holder.url if call.plane == "data" else holder.control_url
        if url is None or holder.sidecar_id == self.claims.sidecar_id:
            return None
        request, signed = call.request, _signed(call.request, call.body)
        headers = headers_to_send(request.headers.raw, _OUR_HEADERS)
        headers.append((HOP_HEADER, write_hop(Hop(call.session_id, call.host), signed, self._secret)))
        if again and not request.headers.get(_RETRY_HEADER, "").strip("0"):
            headers = [pair for pair in headers if pair[0].lower() != _RETRY_HEADER]
            headers.append((_RETRY_HEADER, "1"))
        query = f"?{request.url.query}" if request.url.query else ""
        return Outgoing(request.method, f"{url}{signed.path.decode('latin-1')}{query}", headers, call.body)


class _SharedResponse(Response):
    """Asks the holder, and whoever comes after it, until there is a reply or the agent is gone."""

    def __init__(self, forwarding: Forwarding, call: SharedCall, holder: LeaseRow) -> None:
        super().__init__()
        self._forwarding = forwarding
        self._call = call
        self._holder = holder
        self._again = False
        self._reason = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the call."""
        gone = asyncio.create_task(_wait_gone(receive))
        try:
            response = await self._relay_or_answer(scope, send, gone)
        finally:
            gone.cancel()
            await asyncio.wait({gone})  # `receive` is free again
        if response is not None:
            await response(scope, receive, send)

    async def _relay_or_answer(self, scope: Scope, send: Send, gone: asyncio.Task[None]) -> Response | None:
        """The reply that is made here; None if another replica's was passed on, or nobody waits for one."""
        call, forwarding = self._call, self._forwarding
        loop = asyncio.get_running_loop()
        until: float | None = None
        while True:
            outcome = await self._relay(scope, send, gone)
            if outcome.answered or gone.done():
                return None
            until = until if until is not None else loop.time() + forwarding.patience
            self._again |= outcome.sent
            forwarding.claims.forget(call.session_id)
            if outcome.code == REFUSED_HOP:
                raise unavailable(
                    f"replica {self._holder.url} has another session secret; give all the same --session-secret",
                    "replica_unreachable",
                )
            self._note(outcome)
            try:
                return await call.here(self._again)
            except SessionHeld as held:
                self._holder, left = held.holder, held.seconds_left
            if loop.time() >= until:
                raise unavailable(
                    f"replica {self._holder.url} holds session {call.session_id!r} and does not answer "
                    f"({outcome.reason})",
                    "replica_unreachable",
                )
            await asyncio.wait({gone}, timeout=min(max(left, 0.01), _LONGEST_PAUSE))

    async def _relay(self, scope: Scope, send: Send, gone: asyncio.Task[None]) -> Outcome:
        outgoing = self._forwarding.outgoing(self._call, self._holder, self._again)
        if outgoing is None:
            return Outcome(reason="it is starting")
        relay = Relay(self._forwarding.client, outgoing, scope, send)
        with self._forwarding.watch.of(self._holder.sidecar_id) as over:
            running = asyncio.create_task(relay.run())
            lapsed = asyncio.create_task(over.wait())
            try:
                await asyncio.wait({running, lapsed, gone}, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    return running.result()
            finally:
                for task in (running, lapsed):
                    task.cancel()
                await asyncio.wait({running, lapsed})
        return Outcome(sent=True) if gone.done() else await relay.end("its lease is over")

    def _note(self, outcome: Outcome) -> None:
        if outcome.reason != self._reason:
            self._reason = outcome.reason
            log.warning(
                "no answer from the replica that holds a session: session_id=%s sidecar_id=%s url=%s: %s",
                self._call.session_id, self._holder.sidecar_id, self._holder.url, outcome.reason,
            )  # fmt: skip


def _signed(request: Request, body: bytes) -> Signed:
    return Signed(request.method, request.scope.get("raw_path") or request.url.path.encode(), body)


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

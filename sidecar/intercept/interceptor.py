"""The interceptor as one listener of the sidecar: start it, ask whether it is well, stop it.

Promise: ``start`` returns when every listener accepts connections, or raises and leaves nothing behind;
``ok`` turns false when a listener is gone, so that the sidecar can become unready instead of losing an
agent's calls silently. The process is never exited from here, and the loop's task factory and exception
handler stay as they were.
Concurrency: event loop only; one started Interceptor per process (mitmproxy has a process-wide current
Master).
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from sidecar.intercept import embedded
from sidecar.intercept.authority import Authority, open_authority
from sidecar.intercept.destination import Judge
from sidecar.intercept.embedded import Embedded
from sidecar.intercept.guard import Guard
from sidecar.intercept.hosts import Rules
from sidecar.intercept.passage import Passage
from sidecar.intercept.route import Route
from sidecar.intercept.spec import ListenSpec, Mode, has_ipv6
from sidecar.intercept.stream import Stream
from sidecar.intercept.upgrade import Upgrade


class InterceptorError(Exception):
    """The interceptor could not start; the message names the listener and the cause."""


class Interceptor:
    """mitmproxy inside this process, in front of the gateway at ``gateway_host:gateway_port`` (plain HTTP).

    ``secret`` goes out as ``x-tito-intercept-secret`` and must be new at every boot; ``body_limit`` is in
    bytes and should be the gateway's own; with a ``session_key`` all calls are of its session. Raises
    ValueError for an argument that cannot work.
    """

    def __init__(
        self,
        specs: Sequence[ListenSpec],
        rules: Rules,
        *,
        gateway_host: str,
        gateway_port: int,
        ca_dir: Path,
        ca_bundle: Path | None = None,
        secret: str,
        body_limit: int,
        session_key: str | None = None,
    ) -> None:
        if not specs:
            raise ValueError("specs is empty: an interceptor needs at least one --intercept")
        if not (secret.isascii() and secret.isprintable() and secret.strip() == secret != ""):
            raise ValueError("secret must be printable ASCII, not empty and without spaces around it")
        if body_limit <= 0:
            raise ValueError(f"body_limit is {body_limit}: it is a number of bytes above 0")
        self._specs = tuple(specs)
        self._rules = rules
        self._gateway = (gateway_host, gateway_port)
        self._ca_dir = ca_dir
        self._ca_bundle = ca_bundle
        self._secret = secret
        self._session_key = session_key
        self._body_limit = body_limit
        self._embedded: Embedded | None = None
        self._authority: Authority | None = None

    async def start(self) -> list[tuple[str, int]]:
        """Open every listener; return the addresses bound, in the order of the specs.

        Raises AuthorityError when the CA is unusable, InterceptorError when a listener cannot be opened,
        RuntimeError when already started.
        """
        if self._embedded is not None:
            raise RuntimeError("the interceptor is started already")
        self._authority = await asyncio.to_thread(open_authority, self._ca_dir, self._ca_bundle)
        embedded.quiet_logs()
        ipv6 = has_ipv6()
        modes = [mode for spec in self._specs for mode in spec.mitmproxy_modes(ipv6=ipv6)]
        started = embedded.build(modes, self._authority.confdir, self._body_limit, self._addons())
        self._embedded = started
        try:
            reason = await embedded.open_listeners(started)
        except BaseException:
            await self.stop()
            raise
        if reason is not None:
            await self.stop()
            raise InterceptorError(reason)
        return self.addresses

    async def stop(self) -> None:
        """Stop listening and cut what is open: both sides of it see a disconnect. Harmless when not started."""
        started, self._embedded = self._embedded, None
        if started is not None:
            await embedded.close(started)

    @property
    def ok(self) -> bool:
        """Whether every listener accepts connections."""
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """Why the interceptor is not ok, for the health endpoint and the log; None when it is."""
        if self._embedded is None:
            return "the interceptor is not started"
        return embedded.failure(self._embedded)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses that accept connections now."""
        if self._embedded is None:
            return []
        return [(address[0], address[1]) for address in self._embedded.listener.listen_addrs()]

    def addresses_of(self, mode: Mode) -> list[tuple[str, int]]:
        """The addresses of the listeners of one mode."""
        if self._embedded is None:
            return []
        servers = [server for server in self._embedded.listener.servers if server.mode.type_name == mode]
        return [(address[0], address[1]) for server in servers for address in server.listen_addrs]

    @property
    def connections(self) -> int:
        """How many agent connections are open."""
        return 0 if self._embedded is None else len(self._embedded.listener.connections)

    @property
    def authority(self) -> Authority:
        """The CA's files. Raises RuntimeError before the first start."""
        if self._authority is None:
            raise RuntimeError("the interceptor has no CA before its first start")
        return self._authority

    def _addons(self) -> list[object]:
        judge = Judge(self._rules)
        route = Route(judge, self._gateway, self._secret, self._session_key)
        return [route, Passage(judge), Upgrade(), Stream(), Guard(self._gateway, self._rules)]

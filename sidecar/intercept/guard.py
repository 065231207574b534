"""Addon: the last check before a connection leaves the process.

Promise: the interceptor opens connections to the gateway and to hosts of ``--intercept-allow``, and to nothing
else. mitmproxy logs an exception in an addon and goes on with the flow, so routing alone would fail open; this
check fails closed, whatever happened before it and whatever protocol the agent spoke inside its tunnel.
Concurrency: stateless; hooks run on the event loop and never wait.
"""

import logging

from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from sidecar.intercept.hosts import Rules, Verdict

logger = logging.getLogger(__name__)


class Guard:
    """Refuses to connect to anything but ``gateway`` (host, port) and what ``rules`` let pass."""

    def __init__(self, gateway: tuple[str, int], rules: Rules) -> None:
        self._gateway = gateway
        self._rules = rules

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Fail the connection attempt unless it goes to the gateway or an allowed host over TCP."""
        earlier, data.server.error = data.server.error, "tito-sidecar's proxy connects to its gateway only"
        address = data.server.address
        if address is not None and data.server.transport_protocol == "tcp" and self._permits(*address[:2]):
            data.server.error = earlier
            return
        logger.warning("refused a connection to %s: it is neither the gateway nor an allowed host", address)

    def _permits(self, host: str, port: int) -> bool:
        return (host, port) == self._gateway or self._rules.judge(host, port) is Verdict.PASS

"""Addon: the last check before a connection leaves the process.

Promise: the interceptor opens connections to the gateway and to nothing else. mitmproxy logs an exception
in an addon and goes on with the flow, so routing alone would fail open; this check fails closed, whatever
happened before it and whatever protocol the agent spoke inside its tunnel.
Concurrency: stateless; hooks run on the event loop and never wait.
"""

import logging

from mitmproxy.proxy.server_hooks import ServerConnectionHookData

logger = logging.getLogger(__name__)


class Guard:
    """Refuses to connect to anything but ``gateway`` (host, port)."""

    def __init__(self, gateway: tuple[str, int]) -> None:
        self._gateway = gateway

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """Fail the connection attempt unless it goes to the gateway over plain TCP."""
        address = data.server.address
        if address is not None and address[:2] == self._gateway and data.server.transport_protocol == "tcp":
            return
        logger.warning("refused a connection to %s: only the gateway may be connected to", address)
        data.server.error = "tito-sidecar's proxy connects to its gateway only"

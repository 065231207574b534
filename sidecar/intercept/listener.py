"""mitmproxy's Proxyserver addon, with a way to wait until its last connection has ended.

Promise: ``idle`` is set exactly while no agent connection is open, its connection to the gateway included.
Concurrency: event loop only; one instance belongs to one Master.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.proxy.mode_servers import ProxyConnectionHandler

from sidecar.intercept.release import release


class Listener(Proxyserver):
    """Binds the listeners of all modes and keeps the register of their connections."""

    name = "proxyserver"  # mitmproxy looks this addon up by its name

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mitmproxy 12 annotates in part
        self.idle = asyncio.Event()
        self.idle.set()

    @contextmanager
    def register_connection(
        self, connection_id: tuple[Any, ...] | str, handler: ProxyConnectionHandler
    ) -> Iterator[None]:
        """Hold a connection in the register while mitmproxy handles it."""
        self.idle.clear()
        try:
            with super().register_connection(connection_id, handler):
                yield
        finally:
            release(handler)
            if not self.connections:
                self.idle.set()

    def cut(self) -> None:
        """Close every agent connection; they end, and leave the register, in the loop's next turns."""
        for handler in list(self.connections.values()):
            transport = handler.transports.get(handler.client)
            # Without a task the connection is still in its first hook, and ends by itself once refused or idle.
            if transport is not None and transport.handler is not None:
                handler.close_connection(handler.client)

"""Addon: passes connections to allowed hosts through as bytes, undecrypted.

Promise: only a connection whose destination is on ``--intercept-allow`` is passed, and it is opened to that
host: where a TLS handshake named it, to the address the sidecar looks up, whatever address the agent dialled.
A protocol whose server speaks first is not carried: what a connection is, is seen from its first bytes.
Concurrency: stateless; hooks run on the event loop; only the connection they are about waits for them.
"""

from mitmproxy.net.tls import starts_like_tls_record
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers import HttpLayer, TCPLayer
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.mode_specs import RegularMode, TransparentMode
from mitmproxy.tls import ClientHelloData

from sidecar.intercept.destination import Destination, Judge
from sidecar.intercept.hosts import Verdict


class Passage:
    """Turns allowed connections into byte streams before mitmproxy looks into them."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    async def next_layer(self, nextlayer: NextLayer) -> None:
        """Judge a CONNECT target, or the address of a redirected connection that begins without TLS."""
        context = nextlayer.context
        if context.server.address is None:
            return
        if isinstance(context.client.proxy_mode, TransparentMode):
            await self._redirected(nextlayer, *context.server.address[:2])
        elif isinstance(context.client.proxy_mode, RegularMode) and not context.client.tls_established:
            host, port = context.server.address[:2]
            _pass(nextlayer, Destination(self._judge.rules.judge(host, port), host, port))

    async def _redirected(self, nextlayer: NextLayer, host: str, port: int) -> None:
        inside_tls = nextlayer.context.client.tls_established
        if not inside_tls and starts_like_tls_record(nextlayer.data_client()):  # type: ignore[no-untyped-call]
            return  # the handshake may name a host: tls_clienthello
        if inside_tls or not _pass(nextlayer, await self._judge.addressed(host, port)):
            # Left to itself mitmproxy 12 takes port 53 for DNS, which it neither carries here nor refuses.
            nextlayer.layer = HttpLayer(nextlayer.context, HTTPMode.transparent)

    async def tls_clienthello(self, hello: ClientHelloData) -> None:
        """Judge a redirected connection by the name in its TLS handshake, or without one by its address."""
        context = hello.context
        if not isinstance(context.client.proxy_mode, TransparentMode) or context.server.address is None:
            return
        host, port = context.server.address[:2]
        found = await self._judge.redirected(hello.client_hello.sni, host, port)
        if found.verdict is Verdict.PASS:
            _aim(context, found)
            hello.ignore_connection = True


def _pass(nextlayer: NextLayer, found: Destination) -> bool:
    if found.verdict is not Verdict.PASS:
        return False
    _aim(nextlayer.context, found)
    nextlayer.layer = TCPLayer(nextlayer.context, ignore=True)
    return True


def _aim(context: Context, destination: Destination) -> None:
    context.server.address = (destination.host, destination.port)

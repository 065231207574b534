"""What a connection or a request is meant for, in each mode, and the verdict on it.

Promise: a header decides nothing. In ``regular`` mode the destination is the CONNECT target, or for plain HTTP
the host of the request line. A ``reverse`` listener has one destination, which its operator wrote. In
``transparent`` mode it is the address that the agent connected to; the name in a TLS handshake may stand for it,
since a name leads nowhere but to that very host: to the gateway, or for an allowed host to an address that the
sidecar itself has looked up, never to the one the agent dialled. Where there is no such name (plain HTTP), the
address counts, also where a listed name has it.
Concurrency: event loop only; looking a name up suspends the hook that asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from mitmproxy.connection import Client
from mitmproxy.proxy.mode_specs import ReverseMode, TransparentMode

from sidecar.intercept.hosts import Rules, Verdict
from sidecar.intercept.lookup import Lookup


@dataclass(frozen=True)
class Destination:
    """``host`` and ``port`` are what is meant: with ``PASS`` the address to connect to."""

    verdict: Verdict
    host: str
    port: int


class Judge:
    """Applies ``rules`` to what mitmproxy knows of a connection."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._lookup = Lookup()

    async def request(self, client: Client, address: tuple[str, int]) -> Destination:
        """The destination of a request on ``client``'s connection; ``address`` is what mitmproxy says it is."""
        host, port = address
        if isinstance(client.proxy_mode, ReverseMode):
            return Destination(Verdict.GATEWAY, host, port)
        if not isinstance(client.proxy_mode, TransparentMode):
            return Destination(self.rules.judge(host, port), host, port)
        return await self.redirected(client.sni, host, port)

    async def redirected(self, name: str | None, address: str, port: int) -> Destination:
        """The destination of a redirected connection whose TLS handshake says ``name``, None where none is said."""
        if not name:
            return await self.addressed(address, port)
        verdict = self.rules.judge(name, port)
        if verdict is Verdict.REFUSE and (listed := self.rules.judge(address, port)) is not Verdict.REFUSE:
            return Destination(listed, address, port)
        return Destination(verdict, name, port)

    async def addressed(self, address: str, port: int) -> Destination:
        """The destination of a connection to an IP address."""
        verdict = self.rules.judge(address, port)
        if verdict is not Verdict.REFUSE:
            return Destination(verdict, address, port)
        llm, allowed = self.rules.llm.names_on(port), self.rules.allowed.names_on(port)
        found = await self._lookup.addresses(dict.fromkeys([*llm, *allowed]))
        for names, meant in ((llm, Verdict.GATEWAY), (allowed, Verdict.PASS)):
            for name in names:
                if address in found[name]:
                    return Destination(meant, name, port)
        return Destination(Verdict.REFUSE, address, port)

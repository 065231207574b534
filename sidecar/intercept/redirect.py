"""The packet filter rules of a pod whose agents are intercepted, as text for iptables-restore.

Promise: for every process but those of ``uid``, a TCP connection to anywhere but this network namespace itself
reaches the interceptor, and nothing else leaves but DNS to the resolvers named: UDP is dropped, so that no QUIC
goes past. The control plane's port is refused on every address of the namespace, and only ``uid`` can serve it.
The same text again changes nothing: each chain is ours alone and written whole, in one transaction with its place
in OUTPUT.
Rules of netfilter that this rests on: nat comes before filter in OUTPUT, so a redirected packet is local by then;
a packet without a socket (a reset, a late FIN) has no owner; ``addrtype LOCAL`` are all addresses of the namespace.
Concurrency: pure functions.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Family = Literal[4, 6]

CHAINS = {"filter": "TITO_EGRESS", "nat": "TITO_REDIRECT"}
"""Our chain in each table, in the order the tables are written: without redirection nothing leaves either."""

_NEIGHBOURS = ("router-solicitation", "neighbour-solicitation", "neighbour-advertisement")
"""What IPv6 needs of ICMP to find its way; the kernel sends it, and it stays on the link."""


@dataclass(frozen=True)
class Redirect:
    """``port`` is the interceptor's, ``control_port`` the control plane's, ``uid`` the sidecar's own."""

    port: int = 8081
    control_port: int = 8801
    uid: int = 1337
    resolvers: tuple[str, ...] = field(default=())

    def text(self, family: Family, table: str, jumps: int) -> str:
        """What iptables-restore --noflush reads. ``jumps`` is how often OUTPUT has the jump to our chain now."""
        chain = CHAINS[table]
        rules = self._filter(family) if table == "filter" else self._nat()
        return _lines(
            f"*{table}",
            f":{chain} - [0:0]",
            *(f"-A {chain} {rule}" for rule in rules),
            *[f"-D OUTPUT -j {chain}"] * jumps,
            f"-I OUTPUT 1 -j {chain}",
            "COMMIT",
        )

    def _nat(self) -> list[str]:
        return [
            f"-m owner --uid-owner {self.uid} -j RETURN",
            "-m addrtype --dst-type LOCAL -j RETURN",
            f"-p tcp -j REDIRECT --to-ports {self.port}",
        ]

    def _filter(self, family: Family) -> list[str]:
        here, refuse = "-m addrtype --dst-type LOCAL", "-j REJECT --reject-with tcp-reset"
        resolvers = [found for found in self.resolvers if ipaddress.ip_address(found).version == family]
        return [
            f"-m owner --uid-owner {self.uid} -j RETURN",
            f"-p tcp {here} -m tcp --dport {self.control_port} {refuse}",
            # nobody answers in the sidecar's place while it restarts: callers send the control token
            f"-p tcp -m tcp --sport {self.control_port} -m owner --socket-exists -j DROP",
            f"{here} -j RETURN",
            # answers to connections that came from outside (probes, Services), and the end of those of ``uid``
            "! -p udp -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
            *(f"-p ipv6-icmp -m icmp6 --icmpv6-type {kind} -j RETURN" for kind in _NEIGHBOURS if family == 6),
            *(f"-d {found} -p udp -m udp --dport 53 -j RETURN" for found in resolvers),
            f"-p tcp {refuse}",
            "-j DROP",
        ]


def removal(table: str, jumps: int) -> str:
    """What iptables-restore --noflush reads to take our chain out of a table that has it."""
    chain = CHAINS[table]
    return _lines(f"*{table}", *[f"-D OUTPUT -j {chain}"] * jumps, f"-F {chain}", f"-X {chain}", "COMMIT")


def read_resolvers(resolv_conf: str) -> tuple[str, ...]:
    """The addresses of the ``nameserver`` lines of a resolv.conf; what is no address is left out."""
    return tuple(dict.fromkeys(_addresses(resolv_conf.splitlines())))


def _addresses(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                yield ipaddress.ip_address(words[1].partition("%")[0]).compressed
            except ValueError:
                continue


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"

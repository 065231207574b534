"""Parses ``--intercept-hosts`` and ``--intercept-allow`` and decides what becomes of a destination.

Promise: the verdict rests on the destination's host and port alone: an exact match, or for an entry
``*.example.com`` a name with at least one label more. No DNS. What is on neither list is refused.
Concurrency: pure functions on immutable values.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

DEFAULT_HOSTS = (
    "api.openai.com",
    "api.anthropic.com",
    "*.openai.azure.com",
    "*.services.ai.azure.com",
    "*.cognitiveservices.azure.com",
    "openrouter.ai",
    "api.deepseek.com",
    "generativelanguage.googleapis.com",
)
"""Where the SDKs of OpenAI, Anthropic, Azure OpenAI, OpenRouter, DeepSeek and Gemini's OpenAI endpoint call."""

DEFAULT_PORTS = (443, 80)
"""Ports of an entry that names none: https and http."""

_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*\Z")


class Verdict(Enum):
    """What the interceptor does with a destination."""

    GATEWAY = "answered by the gateway"
    PASS = "passed through undecrypted"
    REFUSE = "refused"


@dataclass(frozen=True)
class HostList:
    """Destinations. ``names`` are the entries as given, for messages; ``parents`` those of ``*.`` entries."""

    names: tuple[str, ...]
    destinations: frozenset[tuple[str, int]]
    parents: frozenset[tuple[str, int]]

    def holds(self, host: str, port: int) -> bool:
        """Whether the destination (host name, or IP address without brackets, and port) is listed."""
        try:
            canonical = canonical_host(host)
        except ValueError:
            return False
        if (canonical, port) in self.destinations:
            return True
        if not self.parents or is_address(canonical):
            return False
        labels = canonical.split(".")
        return any((".".join(labels[cut:]), port) in self.parents for cut in range(1, len(labels)))

    def names_on(self, port: int) -> list[str]:
        """The host names, not addresses and not ``*.`` entries, that are listed with ``port``."""
        return sorted(host for host, listed in self.destinations if listed == port and not is_address(host))


NOTHING = HostList(names=(), destinations=frozenset(), parents=frozenset())


@dataclass(frozen=True)
class Rules:
    """LLM hosts go to the gateway, ``allowed`` ones pass through; a host on both goes to the gateway."""

    llm: HostList
    allowed: HostList = NOTHING

    def judge(self, host: str, port: int) -> Verdict:
        """The verdict on a destination."""
        if self.llm.holds(host, port):
            return Verdict.GATEWAY
        return Verdict.PASS if self.allowed.holds(host, port) else Verdict.REFUSE


def parse_rules(llm: Iterable[str], allowed: Iterable[str] = ()) -> Rules:
    """Parse both settings. Raises ValueError for an entry that is no host, or when there is no LLM host."""
    hosts = parse_hosts(llm, "--intercept-hosts")
    if not hosts.names:
        raise ValueError("--intercept-hosts is empty: name at least one host, for example api.openai.com")
    return Rules(hosts, parse_hosts(allowed, "--intercept-allow"))


def parse_hosts(entries: Iterable[str], setting: str) -> HostList:
    """Parse entries ``host`` (ports 443 and 80), ``host:port``, ``*.domain``, ``[address]:port`` (IPv6).

    Raises ValueError when an entry is no such thing.
    """
    names = tuple(entry.strip() for entry in entries)
    found: dict[bool, set[tuple[str, int]]] = {False: set(), True: set()}
    for name in names:
        try:
            wildcard, destinations = _destinations(name)
        except ValueError:
            raise ValueError(
                f"{setting} entry {name!r}: expected HOST, HOST:PORT or *.DOMAIN, without scheme or path"
            ) from None
        found[wildcard].update(destinations)
    return HostList(names=names, destinations=frozenset(found[False]), parents=frozenset(found[True]))


def is_address(host: str) -> bool:
    """Whether ``host`` is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def canonical_host(host: str) -> str:
    """Return one spelling for equal hosts: lower case, no root dot, IDNA for names, compressed IP addresses.

    Raises ValueError when ``host`` is neither a host name nor an IP address.
    """
    try:
        return ipaddress.ip_address(host).compressed
    except ValueError:
        pass
    # UnicodeError, which the codec raises for labels it cannot encode, is a ValueError.
    name = host.encode("idna").decode("ascii").lower().removesuffix(".")
    if not _HOST_NAME.match(name):
        raise ValueError(f"{host!r} is not a host name")
    return name


def _destinations(entry: str) -> tuple[bool, list[tuple[str, int]]]:
    wildcard = entry.startswith("*.")
    host, port_text = _split(entry[2:] if wildcard else entry)
    host = canonical_host(host)
    if wildcard and (is_address(host) or "." not in host):  # *.com would hold half of the net
        raise ValueError(entry)
    if port_text is None:
        return wildcard, [(host, port) for port in DEFAULT_PORTS]
    if not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text) <= 65535):
        raise ValueError(entry)
    return wildcard, [(host, int(port_text))]


def _split(entry: str) -> tuple[str, str | None]:
    if entry.startswith("["):
        host, bracket, rest = entry[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(entry)
        return host, rest[1:] if rest else None
    if entry.count(":") == 1:
        host, _, port_text = entry.partition(":")
        return host, port_text
    return entry, None

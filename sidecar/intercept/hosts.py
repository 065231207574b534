"""Parses ``--intercept-hosts`` and decides which destinations are LLM hosts.

Promise: ``LlmHosts.allows`` is an exact match of the destination's host and port against the list: no
wildcards, no suffixes, no DNS. What it does not allow, the interceptor refuses.
Concurrency: pure functions on immutable values.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT_HOSTS = ("api.openai.com", "api.anthropic.com")
"""The hosts that the official OpenAI and Anthropic SDKs call when no base URL is set."""

DEFAULT_PORTS = (443, 80)
"""Ports of an entry that names none: https and http."""

_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*\Z")


@dataclass(frozen=True)
class LlmHosts:
    """The allowed destinations. ``names`` are the entries as given, for messages."""

    names: tuple[str, ...]
    destinations: frozenset[tuple[str, int]]

    def allows(self, host: str, port: int) -> bool:
        """Whether the destination (host name, or IP address without brackets, and port) is an LLM host."""
        try:
            return (canonical_host(host), port) in self.destinations
        except ValueError:
            return False


def parse_hosts(entries: Iterable[str]) -> LlmHosts:
    """Parse entries ``host`` (ports 443 and 80) or ``host:port``; IPv6 with a port is ``[address]:port``.

    Raises ValueError when an entry is no such thing or there is none at all.
    """
    names = tuple(entry.strip() for entry in entries)
    if not names:
        raise ValueError("--intercept-hosts is empty: name at least one host, for example api.openai.com")
    destinations = frozenset(found for name in names for found in _destinations(name))
    return LlmHosts(names=names, destinations=destinations)


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


def _destinations(entry: str) -> Iterable[tuple[str, int]]:
    host, port_text = _split(entry)
    try:
        host = canonical_host(host)
    except ValueError:
        raise _bad_entry(entry) from None
    if port_text is None:
        return [(host, port) for port in DEFAULT_PORTS]
    if not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text) <= 65535):
        raise _bad_entry(entry)
    return [(host, int(port_text))]


def _split(entry: str) -> tuple[str, str | None]:
    if entry.startswith("["):
        host, bracket, rest = entry[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _bad_entry(entry)
        return host, rest[1:] if rest else None
    if entry.count(":") == 1:
        host, _, port_text = entry.partition(":")
        return host, port_text
    return entry, None


def _bad_entry(entry: str) -> ValueError:
    return ValueError(
        f"--intercept-hosts entry {entry!r}: expected HOST or HOST:PORT, without scheme, path or wildcard"
    )

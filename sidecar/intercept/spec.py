"""Parses ``--intercept``: which listeners the interceptor opens.

Promise: a ``ListenSpec`` is a listener that can be opened; anything else is a ``ValueError`` at configuration.
Concurrency: pure functions on immutable values, but for ``has_ipv6``, which asks the kernel.
"""

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from sidecar.intercept.hosts import canonical_host

DEFAULT_LISTEN_HOST = "127.0.0.1"
"""mitmproxy's own default is every interface; a proxy nobody asked to publish stays on loopback."""

Mode = Literal["regular", "reverse", "transparent"]

_FORMS = "regular@PORT, transparent@PORT or reverse:URL@PORT, each with HOST:PORT for another address than loopback"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class ListenSpec:
    """One listener. ``port`` 0 takes any free port.

    ``regular`` is a forward proxy (``HTTPS_PROXY``). ``transparent`` takes connections that packet filter rules
    redirect to it (``tito-sidecar redirect-init``). ``reverse`` stands in for the server at ``target``, a host
    and a port, for agents whose base URL can be changed but not their paths.
    """

    host: str
    port: int
    mode: Mode = "regular"
    target: tuple[str, int] | None = None

    def __str__(self) -> str:
        return f"{self._name}@{format_address(self.host, self.port)}"

    @property
    def _name(self) -> str:
        if self.target is None:
            return self.mode
        # Always http: for https mitmproxy 12 opens a UDP listener too. It takes TLS from agents either way, and
        # the target is never connected to.
        return f"{self.mode}:http://{format_address(*self.target)}"

    def mitmproxy_modes(self, *, ipv6: bool) -> list[str]:
        """The spec in mitmproxy 12's ``mode`` syntax: split at the last colon, no brackets.

        A redirected connection arrives on the loopback address of its family, so a transparent listener on
        loopback is two, where there is ``ipv6``.
        """
        both = self.mode == "transparent" and self.host == DEFAULT_LISTEN_HOST and ipv6
        return [f"{self._name}@{host}:{self.port}" for host in (self.host, *(["::1"] if both else []))]


def format_address(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def has_ipv6() -> bool:
    """Whether this network namespace has an IPv6 loopback address."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def parse_spec(text: str) -> ListenSpec:
    """Parse ``regular@PORT``, ``transparent@PORT`` or ``reverse:URL@PORT``; ``HOST:PORT`` in place of the port.

    Raises ValueError for an unknown mode, a bad URL, or a bad host or port.
    """
    name, at, listen = text.strip().rpartition("@")
    mode, colon, url = name.partition(":")
    if not at or mode not in ("regular", "transparent", "reverse") or (mode == "reverse") != bool(colon):
        raise ValueError(f"--intercept {text!r}: expected {_FORMS}")
    host, port = _split(text, listen)
    if mode == "reverse":
        return ListenSpec(host=host, port=port, mode="reverse", target=_target(text, url))
    return ListenSpec(host=host, port=port, mode="transparent" if mode == "transparent" else "regular")


def parse_specs(texts: Iterable[str]) -> tuple[ListenSpec, ...]:
    """Parse every ``--intercept``, in order. Raises ValueError, also when two name the same address."""
    specs: list[ListenSpec] = []
    for text in texts:
        spec = parse_spec(text)
        if spec in specs or any(
            spec.port and (spec.host, spec.port) == (other.host, other.port) for other in specs
        ):
            address = format_address(spec.host, spec.port)
            raise ValueError(f"--intercept {text!r}: {address} is listed twice; remove one of them")
        specs.append(spec)
    return tuple(specs)


def _target(text: str, url: str) -> tuple[str, int]:
    """Host and port of the server that a reverse listener stands in for."""
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
        if parts.scheme not in _PORTS or port == 0 or parts.username is not None:
            raise ValueError("scheme, port or user")
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError("path")
        return canonical_host(parts.hostname or ""), port or _PORTS[parts.scheme]
    except ValueError:
        raise ValueError(
            f"--intercept {text!r}: {url!r} is no server; write https://HOST or http://HOST:PORT, without a path"
        ) from None


def _split(text: str, listen: str) -> tuple[str, int]:
    host, colon, port_text = listen.rpartition(":")
    if colon and not host:
        raise ValueError(f"--intercept {text!r}: the host is empty; write 0.0.0.0 to listen on every interface")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"--intercept {text!r}: write an IPv6 host in brackets, as in regular@[::1]:8080")
    if not (port_text.isascii() and port_text.isdigit() and int(port_text) <= 65535):
        raise ValueError(f"--intercept {text!r}: port {port_text!r} is not a number from 0 to 65535")
    return host or DEFAULT_LISTEN_HOST, int(port_text)

"""Parses ``--intercept``: which listeners the interceptor opens.

Promise: a ``ListenSpec`` is a listener this version can open; anything else is a ``ValueError`` at
configuration.
Concurrency: pure functions on immutable values.
"""

from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT_LISTEN_HOST = "127.0.0.1"
"""mitmproxy's own default is every interface; a proxy nobody asked to publish stays on loopback."""

_PLANNED_MODES = ("transparent", "reverse")


@dataclass(frozen=True)
class ListenSpec:
    """A forward-proxy listener. ``port`` 0 takes any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"regular@{format_address(self.host, self.port)}"

    @property
    def mitmproxy_mode(self) -> str:
        """The spec in mitmproxy 12's ``mode`` syntax: split at the last colon, no brackets."""
        return f"regular@{self.host}:{self.port}"


def format_address(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_spec(text: str) -> ListenSpec:
    """Parse ``regular@PORT`` or ``regular@HOST:PORT``.

    Raises ValueError for a mode of a later version, an unknown mode, or a bad host or port.
    """
    mode, at, listen = text.strip().rpartition("@")
    name = (mode if at else listen).partition(":")[0]
    if name in _PLANNED_MODES:
        raise ValueError(f"--intercept {text!r}: mode {name!r} is not supported by this version; use regular@PORT")
    if not at or mode != "regular":
        raise ValueError(f"--intercept {text!r}: expected regular@PORT or regular@HOST:PORT")
    host, port = _split(text, listen)
    return ListenSpec(host=host, port=port)


def parse_specs(texts: Iterable[str]) -> tuple[ListenSpec, ...]:
    """Parse every ``--intercept``, in order. Raises ValueError, also when two name the same address."""
    specs: list[ListenSpec] = []
    for text in texts:
        spec = parse_spec(text)
        if spec in specs:
            raise ValueError(f"--intercept {text!r}: {spec} is listed twice; remove one of them")
        specs.append(spec)
    return tuple(specs)


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

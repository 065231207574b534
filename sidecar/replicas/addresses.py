"""The URLs under which other replicas, the trainer's fan-out and agents reach this sidecar.

Pure but for one look at the routing table."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from sidecar.web.listener import Listener

_ALL_INTERFACES = ("0.0.0.0", "::")


def shared_url(listener: Listener, advertised: str | None, sibling: str | None = None) -> str:
    """What the lease row says: what is advertised for the listener, else its own address.

    A listener on all interfaces has no address of its own: it is taken from `sibling`, the URL that is advertised
    for another listener of this sidecar, else it is this machine's own (in a pod: the pod's)."""
    if advertised is not None:
        return advertised.rstrip("/")
    if listener.host not in _ALL_INTERFACES:
        return listener.url
    host = (urlsplit(sibling).hostname if sibling is not None else None) or own_address(listener.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.port}"


def own_address(any_address: str) -> str:
    """The address that this machine sends from; loopback where it has no other. Nothing is sent."""
    family, probe = (
        (socket.AF_INET6, "2001:db8::1") if any_address == "::" else (socket.AF_INET, "192.0.2.1")
    )  # addresses for documentation: they only pick the default route
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as made:
            made.connect((probe, 9))
            return str(made.getsockname()[0])
    except OSError:
        return "::1" if any_address == "::" else "127.0.0.1"

"""Addon: takes apart what mitmproxy leaves of a request or a connection, so that its memory is free at once.

mitmproxy 12's layers refer to themselves (a state is a bound method kept in an attribute, a layer's handler is its
child's): only the garbage collector frees them, with the request's body and the TLS session in them. The sidecar
lets that collector look at everything rarely (`sidecar.garbage`), so without this an intercepted connection costs
50 KB until then, and a request its body besides.

Promise: what is taken apart is over: a request when the next one on its connection is over or the connection ends,
a connection when mitmproxy has left it. Should a later mitmproxy be built otherwise, memory is freed later.
Concurrency: event loop only.
"""

from collections.abc import Iterator
from typing import Any

from mitmproxy import http
from mitmproxy.proxy.layer import Layer, NextLayer
from mitmproxy.proxy.layers import HttpLayer
from mitmproxy.proxy.server import ConnectionHandler


class Release:
    """Has to come behind mitmproxy's own NextLayer, which chooses the layers."""

    def next_layer(self, nextlayer: NextLayer) -> None:
        """Let every HTTP layer that was chosen take its requests apart."""
        if nextlayer.layer is not None:
            for layer in _below(nextlayer.layer):
                if isinstance(layer, HttpLayer) and type(layer.streams) is dict and not layer.streams:
                    layer.streams = _Requests()  # type: ignore[assignment]

    def response(self, flow: http.HTTPFlow) -> None:
        """Drop the bodies: both are sent, and nobody asks for them again."""
        flow.request.raw_content = None


class _Requests(dict[int, Layer]):
    """The requests of one HTTP layer by number. The one that was removed last may still run its last steps."""

    _last: Layer | None = None

    def pop(self, key: int, *default: Any) -> Any:
        """Remove a request, and take the one before it apart."""
        removed = super().pop(key, *default)
        self.finish()
        self._last = removed if isinstance(removed, Layer) else None
        return removed

    def finish(self) -> None:
        """Take the last one apart."""
        last, self._last = self._last, None
        if last is not None:
            _take_apart(last)


def release(handler: ConnectionHandler) -> None:
    """Take apart what is left of a connection. Nothing of it may run any more."""
    top = vars(handler).get("layer")
    handler.__dict__.clear()
    if top is not None:
        _take_apart(top)


def _take_apart(top: Layer) -> None:
    for layer in list(_below(top)):
        if isinstance(layer, HttpLayer) and isinstance(layer.streams, _Requests):
            layer.streams.finish()
        layer.__dict__.clear()


def _below(top: Layer) -> Iterator[Layer]:
    """`top` and every layer that it leads to, each once."""
    seen, found = {id(top)}, [top]
    while found:
        layer = found.pop()
        following = list(_held_by(layer))  # before the caller takes it apart
        yield layer
        for one in following:
            if id(one) not in seen:
                seen.add(id(one))
                found.append(one)


def _held_by(layer: Layer) -> Iterator[Layer]:
    """In an attribute, as a value of one, or as the object of a bound method."""
    for value in list(vars(layer).values()):
        for one in value.values() if isinstance(value, dict) else (value,):
            held = getattr(one, "__self__", one)
            if isinstance(held, Layer):
                yield held

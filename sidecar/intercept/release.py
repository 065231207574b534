"""Addon: takes apart what mitmproxy leaves of a request or a connection, so that its memory is free at once.

mitmproxy 12's layers refer to themselves (a state is a bound method kept in an attribute, a layer's handler is its
child's): only the garbage collector frees them, with the request's body and the TLS session in them. The sidecar
lets that collector look at everything rarely (`sidecar.garbage`), so without this an intercepted connection costs
50 KB until then, and a request its body besides.

Promise: what is taken apart is over, and not on the stack: mitmproxy works an event off without a turn of the loop,
and requests on one connection run within each other's steps (pipelined ones, an answer that lets the next request
in). A connection is over when mitmproxy has left it. Should a later mitmproxy be built otherwise, memory is freed
later.
Concurrency: event loop only.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mitmproxy import http
from mitmproxy.proxy.commands import Command
from mitmproxy.proxy.events import Event
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
    """The requests of one HTTP layer by number."""

    def __init__(self) -> None:
        super().__init__()
        self._over: list[Layer] = []
        self._asked = False

    def pop(self, key: int, *default: Any) -> Any:
        """Remove a request. It runs its last steps yet: it is taken apart once what happens now has been worked
        off, and only when it waits for no addon either."""
        removed = super().pop(key, *default)
        if isinstance(removed, Layer):
            self._over.append(removed)
            if not self._asked:
                self._asked = True
                asyncio.get_running_loop().call_soon(self._finish)
        return removed

    def _finish(self) -> None:
        over, self._over, self._asked = self._over, [], False
        for layer in over:
            if any(vars(one).get("_paused") for one in _below(layer)):
                self._over.append(layer)  # until the next one is over, or the connection
            else:
                _take_apart(layer)

    def finish(self) -> None:
        """Take all of them apart: nothing of the connection runs any more."""
        over, self._over = self._over, []
        for layer in over:
            _take_apart(layer)


def release(handler: ConnectionHandler) -> None:
    """Take apart what is left of a connection. Nothing of it may run any more but hooks: one that waits for a
    lookup, or that was asked for last and begins a turn later. They find what they use, and do no harm."""
    top, master = vars(handler).get("layer"), vars(handler).get("master")
    handler.__dict__.clear()
    vars(handler).update(master=master, layer=_Over(), timeout_watchdog=_Over(), _server_event_lock=asyncio.Lock())
    if top is not None:
        _take_apart(top)


class _Over:
    """In the place of a connection's layers and its watchdog: nothing is done any more."""

    def handle_event(self, event: Event) -> Iterator[Command]:
        """No commands."""
        return iter(())

    def register_activity(self) -> None:
        """Nobody watches."""

    def disarm(self) -> AbstractContextManager[None]:
        """Nobody watches."""
        return nullcontext()


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

"""Builds mitmproxy's Master for this process, and opens and closes its listeners.

Promise: the loop is left as it was found. ``Master.run()`` would set the loop's task factory (eager tasks)
and exception handler for as long as it runs, for every server on the loop; the three steps it takes
(listeners, ``running``, ``done``) are public, so they are taken here without it. ``ErrorCheck``, which
exits the process when something logs an error at start, is not among the addons.
Concurrency: event loop only. mitmproxy keeps its current Master in a process global: one at a time per
process.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mitmproxy.addons.block import Block
from mitmproxy.addons.next_layer import NextLayer
from mitmproxy.addons.tlsconfig import TlsConfig
from mitmproxy.http import MessageData
from mitmproxy.log import LegacyLogEvents
from mitmproxy.master import Master
from mitmproxy.options import Options
from mitmproxy.proxy.mode_servers import ServerInstance

from sidecar.intercept.listener import Listener
from sidecar.intercept.release import Release

logger = logging.getLogger(__name__)

IDLE_SECONDS = 7 * 24 * 3600
"""``tcp_timeout``: mitmproxy 12.3.1 cuts even an agent that waits for its answer after it (default 600 s)."""

CLOSE_SECONDS = 5.0
"""How long ``close`` waits for the connections it has cut to end; they take a few turns of the loop."""


@dataclass(frozen=True)
class Embedded:
    """A Master and those of its addons that are asked things."""

    master: Master
    listener: Listener
    tlsconfig: TlsConfig


def build(modes: Sequence[str], confdir: Path, body_limit: int, addons: Sequence[object]) -> Embedded:
    """Make a Master with the addons a proxy needs, ours before mitmproxy's. Needs the running loop.

    ``body_limit`` is in bytes. ``body_size_limit`` of mitmproxy 12.3.1 applies to requests (413) and, where a
    response declares a longer ``content-length``, to responses too (502); chunked responses are not limited.
    """
    options = Options(
        mode=list(modes),
        listen_host="127.0.0.1",
        confdir=str(confdir),
        tcp_timeout=IDLE_SECONDS,
        # mitmproxy 12.3.1 serves 5 concurrent streams per HTTP/2 connection; over HTTP/1.1 there is no limit.
        http2=False,
        http3=False,
        # What is not HTTP has no business with an LLM host: no tunnels of other kinds.
        rawtcp=False,
        websocket=False,
    )
    skip_debug_checks()
    master = Master(options)
    _drop_log_relay(master)
    listener, tlsconfig = Listener(), TlsConfig()
    master.addons.add(*addons, Block(), listener, NextLayer(), Release(), tlsconfig)  # type: ignore[no-untyped-call]
    master.options.update(  # type: ignore[no-untyped-call]
        connection_strategy="lazy",  # eager would dial the host the agent named
        store_streamed_bodies=False,
        validate_inbound_headers=True,
        body_size_limit=str(body_limit),
    )
    return Embedded(master=master, listener=listener, tlsconfig=tlsconfig)


async def open_listeners(embedded: Embedded) -> str | None:
    """Load the CA and bind every listener; return None, or the reason why one of them is not there."""
    await embedded.master.running()
    if embedded.tlsconfig.certstore is None:
        return "mitmproxy could not load the CA; see its log"
    await embedded.listener.setup_servers()
    return failure(embedded)


def failure(embedded: Embedded) -> str | None:
    """Return why not every listener accepts connections, or None when they all do."""
    for server in embedded.listener.servers:
        if not (server.is_running and server.listen_addrs):
            return f"--intercept {server.mode.full_spec}: {_cause(server)}"
    return None


async def close(embedded: Embedded) -> None:
    """Stop listening, cut every agent's connection, and let the addons finish."""
    for server in embedded.listener.servers:
        if server.is_running:
            await server.stop()
    embedded.listener.cut()
    try:
        await asyncio.wait_for(embedded.listener.idle.wait(), CLOSE_SECONDS)
    except TimeoutError:
        logger.warning("%d connections did not end in %g s", len(embedded.listener.connections), CLOSE_SECONDS)
    await embedded.master.done()


def skip_debug_checks() -> None:
    """Leave out mitmproxy's own type check of each field of every request and response, as ``python -O`` does.

    For a field that may be None it raises, catches and leaves a cycle with a traceback: a third of what an
    intercepted request costs, and most of the memory it holds until a garbage collection.
    """
    MessageData.__post_init__ = _nothing  # type: ignore[method-assign]


def _nothing(_: MessageData) -> None:
    return None


def quiet_logs() -> None:
    """Let only warnings of the logger ``mitmproxy`` through, unless somebody has set its level.

    mitmproxy logs every connection at INFO.
    """
    theirs = logging.getLogger("mitmproxy")
    if theirs.level == logging.NOTSET:
        theirs.setLevel(logging.WARNING)


def _cause(server: ServerInstance[Any]) -> str:
    error = server.last_exception
    if error is None:
        return "the listener was closed; restart the sidecar"
    return f"{error}; free the address or choose another one"


def _drop_log_relay(master: Master) -> None:
    """Take away the handler that a Master puts on the root logger to feed its deprecated log events.

    It would format every log record of the whole process once more, for addons that do not listen.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, LegacyLogEvents) and handler.master is master:
            root.removeHandler(handler)

"""`tito-sidecar serve` as a process: logging, limits, signals, one shutdown path."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sys
from collections.abc import Coroutine

import uvloop

from sidecar.app import Sidecar
from sidecar.config import Settings
from sidecar.garbage import collect_garbage
from sidecar.heap import share_one_heap
from sidecar.intercept.spec import format_address
from sidecar.interception import Interception
from sidecar.store import place_of

log = logging.getLogger("sidecar")

_SWITCH_SECONDS = 0.0005
"""How long a thread that renders or encodes keeps the interpreter while the event loop waits for it. The loop gives
it away with every system call: with Python's own 5 ms, twenty streams that have news at once wait a tenth of a
second."""


def set_up_logging() -> None:
    """One line per event on stderr, with `key=value` details."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for noisy in ("uvicorn", "httpx", "httpcore", "aiosqlite", "mitmproxy"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def raise_file_limit() -> None:
    """A stream takes two descriptors; the usual soft limit of 1,024 is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(work: Coroutine[None, None, None]) -> None:
    """Run `serve` on uvloop: a tenth less CPU than on asyncio's own loop, per turn and per streamed token."""
    asyncio.run(work, loop_factory=uvloop.new_event_loop)


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT, then finish what runs. A second signal ends the process at once."""
    share_one_heap()
    sys.setswitchinterval(_SWITCH_SECONDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        log.info("stopping; running steps have %g s", settings.drain_seconds)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    sidecar = Sidecar(settings)
    starting = loop.create_task(sidecar.__aenter__())
    stopping = loop.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # a signal while it waits for the engine
        starting.cancel()
        await asyncio.wait({starting})
        return
    starting.result()
    collecting = loop.create_task(collect_garbage(lambda: not sidecar.controller.active))
    try:
        _announce(sidecar)
        await stop.wait()
    finally:
        collecting.cancel()
        await sidecar.__aexit__()


def _announce(sidecar: Sidecar) -> None:
    settings = sidecar.settings
    log.info("agents:  base_url %s/v1 (or %s/sessions/SESSION_ID/v1)", sidecar.gateway.url, sidecar.gateway.url)
    if sidecar.interception is not None:
        _announce_interception(sidecar.interception)
    where = "as given" if settings.control_token else f"in {settings.state_dir / 'control-token'}"
    log.info("trainer: %s, token %s", sidecar.control.url, where)
    log.info("engine:  %s, model %s, family %s", settings.engine_url, sidecar.model.name, sidecar.model.family.name)
    formats = sidecar.model.parsers.formats
    log.info(
        "replies: tool calls %s, reasoning %s",
        formats.calls_name or "none",
        formats.reasoning_name or "none",
    )
    log.info("store:   %s", place_of(settings.store or ""))


def _announce_interception(interception: Interception) -> None:
    bundle = interception.bundle
    for host, port in interception.addresses_of("regular"):
        log.info("agents:  HTTPS_PROXY=http://%s with SSL_CERT_FILE=%s", format_address(host, port), bundle)
    for host, port in interception.addresses_of("reverse"):
        log.info("agents:  https://%s with SSL_CERT_FILE=%s", format_address(host, port), bundle)
    for host, port in interception.addresses_of("transparent"):
        shown = format_address(host, port)
        log.info("agents:  redirected to %s (tito-sidecar redirect-init), with SSL_CERT_FILE=%s", shown, bundle)

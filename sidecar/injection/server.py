"""`tito-sidecar inject-webhook` as a process: `POST /mutate`, `GET /health`, `GET /metrics`, all over TLS.

Concurrency: one event loop. A review is a millisecond of pure computation, so it is answered where it arrives.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters.protocols.errors import RequestError
from sidecar.config import SettingsError, split_address
from sidecar.injection.certificate import ServingCertificate
from sidecar.injection.metrics import CONTENT_TYPE, Metrics
from sidecar.injection.review import Answer, ReviewError, answer_review
from sidecar.injection.settings import InjectionSettings
from sidecar.web.body import read_body

log = logging.getLogger("sidecar.injection")

_MAX_BODY = 8 * 2**20
"""Bytes. An API server takes no object over 3 MiB; a review holds one, or two for changes."""

_KEEP_ALIVE = 300
"""Seconds. API servers drop idle connections after 90: theirs is to close, or a review meets a closed one."""

_SHUTDOWN = 5


def build_webhook(settings: InjectionSettings, metrics: Metrics) -> Starlette:
    """The ASGI app of `--listen`."""

    async def mutate(request: Request) -> Response:
        started = time.perf_counter()
        try:
            answer = answer_review(await read_body(request, _MAX_BODY), settings)
        except ReviewError as error:
            metrics.invalid()
            return _json({"error": str(error)}, 400)
        except RequestError as error:
            metrics.invalid()
            return _json({"error": f"the body is larger than {_MAX_BODY} bytes"}, error.status)
        metrics.answered(answer, time.perf_counter() - started)
        _log(answer)
        return _json(answer.body, 200)

    async def health(request: Request) -> Response:
        return _json({"status": "ok"}, 200)

    async def exposition(request: Request) -> Response:
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    return Starlette(
        routes=[
            Route("/mutate", mutate, methods=["POST"]),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", exposition, methods=["GET"]),
        ]
    )


async def serve_webhook(settings: InjectionSettings) -> None:
    """Run until SIGTERM or SIGINT. Raises `SettingsError` where it cannot start."""
    metrics = Metrics()
    certificate = ServingCertificate(settings.tls_cert, settings.tls_key)
    metrics.certificate(certificate.expiry)
    if certificate.expiry < time.time():
        log.error("--tls-cert %s has expired: API servers refuse it", settings.tls_cert)
    bound = _bind(settings.listen)
    config = uvicorn.Config(
        build_webhook(settings, metrics),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_SHUTDOWN,
    )
    config.load()
    config.ssl = certificate.context
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    host, port = bound.getsockname()[:2]
    log.info("injecting on https://%s:%d/mutate", f"[{host}]" if ":" in host else host, port)
    watching = loop.create_task(_watch(certificate, metrics, settings.tls_reload_seconds))
    try:
        await server.serve(sockets=[bound])
    finally:
        watching.cancel()


def set_up_logging() -> None:
    """One line per event on stderr."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the handlers of `serve_webhook` alone: uvicorn's own end the process by the signal again."""
        yield

    def stop(self) -> None:
        """Finish what runs and return from `serve`."""
        self.should_exit = True


async def _watch(certificate: ServingCertificate, metrics: Metrics, seconds: float) -> None:
    """Until cancelled: look at the certificate's files."""
    while True:
        await asyncio.sleep(seconds)
        try:
            result = certificate.look()
        except SettingsError as error:
            log.error("the former certificate serves on: %s", error)
            metrics.certificate(certificate.expiry, result="failed")
            continue
        if result is not None:
            log.info("certificate loaded, valid until %s", time.strftime("%F %T", time.gmtime(certificate.expiry)))
            metrics.certificate(certificate.expiry, result=result)


def _bind(listen: str) -> socket.socket:
    host, port = split_address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen()
    except OSError as error:
        bound.close()
        raise SettingsError(f"--listen is {listen!r}: {error.strerror or error}") from error
    bound.setblocking(False)
    return bound


def _log(answer: Answer) -> None:
    if answer.outcome == "refused":
        log.warning("refused: %s", answer.message)
    elif answer.outcome != "ignored":
        log.info("%s mode=%s session_id=%s", answer.outcome, answer.mode, answer.session_id)


def _json(body: object, status: int) -> Response:
    return Response(orjson.dumps(body), status_code=status, media_type="application/json")

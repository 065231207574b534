"""Fixtures: the stand-in gateway, started interceptors in front of it, and a host that must not be called."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.intercept.hosts import DEFAULT_HOSTS, parse_rules
from sidecar.intercept.interceptor import Interceptor
from sidecar.intercept.spec import parse_specs
from tests.intercept.public_ca import PublicCA
from tests.intercept.stand_in import StandInGateway

SECRET = "secret-of-this-boot"

Start = Callable[..., Awaitable[Interceptor]]


class Original:
    """A server in the place of the host an agent named; ``calls`` counts the connections it got."""

    def __init__(self) -> None:
        self.calls = 0
        self.port = 0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\noriginal")
        writer.close()

    @contextlib.asynccontextmanager
    async def serve(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["Original"]:
        """Listen on a free port of 127.0.0.1 until the block ends."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()


@pytest.fixture
async def gateway() -> AsyncIterator[StandInGateway]:
    async with StandInGateway().serve() as running:
        yield running


@pytest.fixture
async def original() -> AsyncIterator[Original]:
    async with Original().serve() as running:
        yield running


@pytest.fixture
def public_ca(tmp_path: Path) -> PublicCA:
    return PublicCA(tmp_path / "public")


@pytest.fixture
async def tls_original(public_ca: PublicCA) -> AsyncIterator[Original]:
    """The same over TLS, with a certificate for ``localhost`` that only ``public_ca`` vouches for."""
    async with Original().serve(public_ca.server_context("localhost")) as running:
        yield running


@pytest.fixture
async def start(gateway: StandInGateway, tmp_path: Path) -> AsyncIterator[Start]:
    """Start interceptors in front of the gateway: ``await start(hosts=[...], specs=[...], body_limit=...)``."""
    started: list[Interceptor] = []

    async def run(**changes: Any) -> Interceptor:
        interceptor = make_interceptor(gateway.port, tmp_path / "ca", **changes)
        started.append(interceptor)
        await interceptor.start()
        return interceptor

    yield run
    for interceptor in started:
        await interceptor.stop()


def make_interceptor(gateway_port: int, ca_dir: Path, **changes: Any) -> Interceptor:
    """Make an interceptor with the defaults of these tests; ``hosts`` may be entries or ready Rules."""
    hosts = changes.get("hosts", DEFAULT_HOSTS)
    return Interceptor(
        parse_specs(changes.get("specs", ["regular@0"])),
        parse_rules(hosts, changes.get("allowed", [])) if isinstance(hosts, list | tuple) else hosts,
        gateway_host="127.0.0.1",
        gateway_port=gateway_port,
        ca_dir=ca_dir,
        secret=changes.get("secret", SECRET),
        body_limit=changes.get("body_limit", 8 * 1024 * 1024),
    )

"""TCP, TLS and faults in front of a PostgreSQL server that listens on a unix socket alone.

One event loop. `Proxy` forwards every connection; the test says when connections break and what is lost with them.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_SSL_REQUEST = (8).to_bytes(4) + (80877103).to_bytes(4)
_COMMIT = b"COMMIT;"
_SYNC = b"S\0\0\0\4"
"""Ends what a client sends before it waits for an answer; a simple query ("Q") has none."""


class Proxy:
    """A listener on 127.0.0.1. `port` stays the same while `refuse` turns connections away."""

    def __init__(self, socket: str, context: ssl.SSLContext | None) -> None:
        self._socket, self._context = socket, context
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0
        self.refuse = False
        """Close new connections at once, as while nothing listens."""
        self.lose: str | None = None
        """`commit`: the next COMMIT never arrives; `reply`: it takes place, but its reply is lost."""
        self.lost = 0
        """How often `lose` happened."""
        self.away_after = False
        """Set `refuse` when it happens: the server is not to be reached any more."""
        self.happened = asyncio.Event()
        """It did."""
        self.round_trips = 0
        """How often a client waited for an answer."""

    def url(self, path: str = "", **parameters: str) -> str:
        """URL of the server through this proxy."""
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"postgresql://postgres:not-shown@127.0.0.1:{self.port}/{path or 'postgres'}?{query}"

    def cut(self) -> None:
        """Break all connections."""
        for writer in list(self._open):
            writer.transport.abort()

    def hold(self) -> None:
        """Swallow what the server says: nobody hears from it, and nobody is told."""
        self._flows.clear()

    def release(self) -> None:
        """Let it be heard again."""
        self._flows.set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._on_connect, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        with suppress(OSError, asyncio.IncompleteReadError):
            first = await self._negotiate(reader, writer)
            up_reader, up_writer = await asyncio.open_unix_connection(self._socket)
            up_writer.write(first)
            self._open |= {writer, up_writer}
            try:
                down = asyncio.create_task(self._answer(up_reader, writer))
                await self._ask(reader, up_writer, up_reader, down)
                down.cancel()
            finally:
                self._open -= {writer, up_writer}
                writer.transport.abort()
                up_writer.transport.abort()

    async def _negotiate(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """The first bytes for the server, after TLS if that is asked for."""
        first = await reader.readexactly(8)
        if first != _SSL_REQUEST:
            return first
        writer.write(b"N" if self._context is None else b"S")
        await writer.drain()
        if self._context is not None:
            await writer.start_tls(self._context)
        return b""

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        down: asyncio.Task[None],
    ) -> None:
        while data := await reader.read(65536):
            self.round_trips += data.count(_SYNC) + data.startswith(b"Q")
            if self.lose is not None and _COMMIT in data:
                how, self.lose = self.lose, None
                self.lost += 1
                self.refuse = self.away_after
                if how == "reply":
                    down.cancel()
                    with suppress(asyncio.CancelledError):
                        await down
                    up_writer.write(data)
                    await up_reader.read(65536)  # the server has committed
                self.happened.set()
                return
            up_writer.write(data)
            await up_writer.drain()

    async def _answer(self, up_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await up_reader.read(65536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
            writer.transport.abort()


@asynccontextmanager
async def proxied(socket: str, context: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    """A proxy that listens."""
    proxy = Proxy(socket, context)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


def self_signed(directory: Path, address: str = "127.0.0.1") -> tuple[Path, ssl.SSLContext]:
    """The certificate of a server at `address`, for `sslrootcert`, and the context of that server."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's PostgreSQL")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path, private = directory / f"{address}.crt", directory / f"{address}.key"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, private)
    return path, context

"""The webhook's serving certificate, read again when its files change.

Promise: every handshake uses a chain and a key that belong together; files that do not (a change half done) are
left for the next look, and the former certificate serves on. Open connections keep the one they began with.
Concurrency: one event loop; `look` reads two small files.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from cryptography import x509

from sidecar.config import SettingsError


class ServingCertificate:
    """`context` is for the listener, once and for all. Raises `SettingsError` where the files cannot serve."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._paths = certificate, key
        self.context = _server_context()
        self.context.sni_callback = self._choose  # called for clients without SNI too
        self._seen = self._read()
        self._current, self.expiry = self._load()

    def look(self) -> str | None:
        """Whether the files changed: `loaded`, or None. Raises `SettingsError` where the change cannot be served,
        once per change."""
        content = self._read()
        if content == self._seen:
            return None
        self._seen = content
        current, expiry = self._load()
        if self._read() != content:  # they changed while they were loaded
            self._seen = (b"", b"")
            return None
        self._current, self.expiry = current, expiry
        return "loaded"

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _read(self) -> tuple[bytes, bytes]:
        content = []
        for flag, path in zip(("--tls-cert", "--tls-key"), self._paths, strict=True):
            try:
                content.append(path.read_bytes())
            except OSError as error:
                raise SettingsError(f"{flag} is {str(path)!r}: {error.strerror}") from error
        return content[0], content[1]

    def _load(self) -> tuple[ssl.SSLContext, float]:
        certificate, key = self._paths
        context = _server_context()
        try:
            leaf = x509.load_pem_x509_certificates(self._seen[0])[0]
            context.load_cert_chain(certificate, key, password=lambda: b"")  # else OpenSSL asks the terminal
        except (ValueError, OSError) as error:  # ssl.SSLError is an OSError
            raise SettingsError(
                f"--tls-cert {str(certificate)!r} and --tls-key {str(key)!r} cannot serve: {error}; "
                "give a PEM chain and the unencrypted key of its first certificate"
            ) from error
        return context, leaf.not_valid_after_utc.timestamp()


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context

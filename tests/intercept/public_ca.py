"""A certificate authority of the net outside, which agents trust and the interceptor has nothing to do with.

Promise: certificates that strict clients accept for the names they were made for. Concurrency: pure functions.
"""

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sidecar.intercept.certificate import make_authority


class PublicCA:
    """``certificate`` is what clients trust."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        key, certificate = make_authority(datetime.datetime.now(datetime.UTC))
        self.certificate = folder / "public-ca.pem"
        self.certificate.write_bytes(certificate)
        self._key = serialization.load_pem_private_key(key, None)
        self._name = x509.load_pem_x509_certificate(certificate)

    def server_file(self, *names: str) -> Path:
        """Key and certificate, in one PEM file, of a server with these names."""
        assert isinstance(self._key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])]))
            .issuer_name(self._name.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        path = self.folder / f"{names[0]}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def server_context(self, *names: str) -> ssl.SSLContext:
        """What a server with these names serves TLS with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server_file(*names))
        return context

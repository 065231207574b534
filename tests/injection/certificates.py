"""Certificates for the webhook, as cert-manager or the chart would make them."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificate(name: str) -> tuple[bytes, bytes]:
    """(certificate, key) in PEM: self-signed, for 127.0.0.1 and the webhook's service, with `name` as subject."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("webhook.tito.svc"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM, *form
    )


def mount_secret(folder: Path, content: tuple[bytes, bytes]) -> None:
    """Put both files where they are, in one step, as the kubelet does: `..data` is a link that is replaced."""
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir(parents=True)
    for name, data in zip(("tls.crt", "tls.key"), content, strict=True):
        (version / name).write_bytes(data)
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(f"..data/{name}")
    fresh = folder / "..data_tmp"
    fresh.symlink_to(version.name)
    fresh.replace(folder / "..data")

"""Makes and checks the interception CA: key and certificate as PEM bytes, no files.

Promise: what ``check_authority`` accepts can sign the certificates that agents are shown: a CA certificate
that is valid now, with the key that belongs to it.
Concurrency: pure functions, apart from the system's random numbers and the clock given.
"""

import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = datetime.timedelta(days=3650)
"""Lifetime of a CA that we make. It lives as long as its --ca-dir; nobody rotates it."""

BACKDATED = datetime.timedelta(days=2)
"""How long before its making a certificate is valid, for agents whose clocks are behind."""


class AuthorityError(Exception):
    """The interception CA cannot be used; the message names the file, what is wrong and the remedy."""


def make_authority(now: datetime.datetime) -> tuple[bytes, bytes]:
    """Make a CA; return (key, certificate) as PEM. ``now`` is aware.

    The key is on P-256: mitmproxy 12 uses the CA's key for every leaf too, so each TLS handshake signs with
    it (measured: 1 ms of CPU less per new connection than with RSA 2048).
    """
    key = ec.generate_private_key(ec.SECP256R1())
    key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = x509.Name(
        [
            # Part of the key's id tells the CAs of several sidecars in one trust store apart.
            x509.NameAttribute(NameOID.COMMON_NAME, f"tito-sidecar CA {key_id.digest[:4].hex()}"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "tito-sidecar"),
        ]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_signing_only(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(key_id, critical=False)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key_pem, certificate.public_bytes(serialization.Encoding.PEM)


def check_authority(key_pem: bytes, certificate_pem: bytes, now: datetime.datetime) -> None:
    """Raise AuthorityError unless the two are a usable CA at ``now`` (aware); the first certificate counts."""
    try:
        key = serialization.load_pem_private_key(key_pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: the key is encrypted
        raise AuthorityError(f"ca-key.pem is not an unencrypted PEM private key ({error}); replace it") from error
    try:
        certificate = x509.load_pem_x509_certificates(certificate_pem)[0]
    except ValueError as error:
        raise AuthorityError(f"ca-cert.pem is not a PEM certificate ({error}); replace it") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise AuthorityError(f"ca-key.pem holds a {type(key).__name__}; put an RSA or EC key, or remove both files")
    if key.public_key() != certificate.public_key():
        raise AuthorityError("ca-key.pem is not the key of ca-cert.pem; put a matching pair, or remove both")
    if not _is_authority(certificate):
        raise AuthorityError("ca-cert.pem is no certificate authority (basicConstraints CA:TRUE); replace it")
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        raise AuthorityError(
            f"ca-cert.pem is valid from {certificate.not_valid_before_utc:%Y-%m-%d} until "
            f"{certificate.not_valid_after_utc:%Y-%m-%d}, not now; replace it, or remove it and ca-key.pem"
        )


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _signing_only() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )

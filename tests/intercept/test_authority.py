"""The interception CA: made once, kept private, refused when it cannot be trusted."""

import datetime
import fcntl
import os
import ssl
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import certifi
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from sidecar.intercept.authority import Authority, open_authority
from sidecar.intercept.certificate import VALIDITY, AuthorityError, check_authority, make_authority

NOW = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def pem(key: Key, password: bytes | None = None) -> bytes:
    lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)


def certificate(key: Key, *, ca: bool | None = True) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "given")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + datetime.timedelta(days=1))
    )
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM)


def test_the_first_use_makes_a_ca_whose_key_only_the_owner_reads(tmp_path: Path) -> None:
    ca_dir = tmp_path / "deep" / "ca"
    found = open_authority(ca_dir)
    assert found == Authority(ca_dir / "ca-cert.pem", ca_dir / "ca-bundle.pem", ca_dir / "mitmproxy")
    assert mode(ca_dir / "ca-key.pem") == 0o600
    assert mode(found.confdir) == 0o700
    assert mode(found.confdir / "mitmproxy-ca.pem") == 0o600
    assert (mode(found.certificate), mode(found.bundle)) == (0o644, 0o644)
    assert sorted(path.name for path in ca_dir.iterdir()) == [
        "ca-bundle.pem",
        "ca-cert.pem",
        "ca-key.pem",
        "ca-truststore.p12",
        "mitmproxy",
    ]


def test_what_agents_are_given_holds_no_key(tmp_path: Path) -> None:
    found = open_authority(tmp_path)
    for path in (found.certificate, found.bundle):
        assert b"PRIVATE KEY" not in path.read_bytes()
    assert b"PRIVATE KEY" in (found.confdir / "mitmproxy-ca.pem").read_bytes()


def test_the_bundle_is_the_public_roots_and_our_certificate(tmp_path: Path) -> None:
    found = open_authority(tmp_path)
    bundle = x509.load_pem_x509_certificates(found.bundle.read_bytes())
    assert bundle[:-1] == x509.load_pem_x509_certificates(Path(certifi.where()).read_bytes())
    assert bundle[-1:] == x509.load_pem_x509_certificates(found.certificate.read_bytes())
    ssl.create_default_context(cafile=str(found.bundle))


def test_a_second_start_keeps_the_ca_and_renews_what_is_derived(tmp_path: Path) -> None:
    first = open_authority(tmp_path)
    kept = first.certificate.read_bytes()
    first.bundle.write_bytes(b"old roots")
    second = open_authority(tmp_path)
    assert second.certificate.read_bytes() == kept
    assert second.bundle.read_bytes().endswith(kept)


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)])
def test_a_given_pair_is_used_as_it_is(tmp_path: Path, key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime.now(datetime.UTC)
    monkeypatch.setattr("tests.intercept.test_authority.NOW", now - datetime.timedelta(minutes=1))
    (tmp_path / "ca-key.pem").write_bytes(pem(key).rstrip())
    (tmp_path / "ca-key.pem").chmod(0o400)
    (tmp_path / "ca-cert.pem").write_bytes(certificate(key))
    found = open_authority(tmp_path)
    assert (found.confdir / "mitmproxy-ca.pem").read_bytes() == pem(key) + certificate_of(tmp_path)


def certificate_of(ca_dir: Path) -> bytes:
    return (ca_dir / "ca-cert.pem").read_bytes()


@pytest.mark.parametrize("bits", [0o644, 0o640, 0o604, 0o610, 0o660])
def test_a_key_that_others_can_reach_is_refused_with_its_mode(tmp_path: Path, bits: int) -> None:
    open_authority(tmp_path)
    (tmp_path / "ca-key.pem").chmod(bits)
    with pytest.raises(AuthorityError, match=rf"ca-key\.pem has mode {bits:04o}.*set mode 0600"):
        open_authority(tmp_path)
    assert mode(tmp_path / "ca-key.pem") == bits, "it is refused, not repaired"


def test_a_private_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    open_authority(tmp_path).confdir.chmod(0o755)
    with pytest.raises(AuthorityError, match=r"folder mitmproxy has mode 0755.*set mode 0700"):
        open_authority(tmp_path)


@pytest.mark.parametrize(("lost", "left"), [("ca-key.pem", "ca-cert.pem"), ("ca-cert.pem", "ca-key.pem")])
def test_half_a_pair_is_refused_and_not_completed(tmp_path: Path, lost: str, left: str) -> None:
    open_authority(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(AuthorityError, match=f"{left} is there, {lost} is not"):
        open_authority(tmp_path)
    assert not (tmp_path / lost).exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AuthorityError, match=r"--ca-dir .*file/ca.*must be able to read and write there"):
        open_authority(tmp_path / "file" / "ca")


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = open_authority(tmp_path)
    before = found.bundle.read_bytes()
    names = sorted(tmp_path.rglob("*"))

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(AuthorityError, match="No space left on device"):
        open_authority(tmp_path)
    assert found.bundle.read_bytes() == before
    assert sorted(tmp_path.rglob("*")) == names


def test_a_sidecar_waits_for_another_that_is_making_the_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    lock = fcntl.flock

    def flock(handle: int, operation: int) -> None:
        asked.set()
        lock(handle, operation)

    folder = os.open(tmp_path, os.O_RDONLY)
    lock(folder, fcntl.LOCK_EX)
    monkeypatch.setattr(fcntl, "flock", flock)
    with ThreadPoolExecutor() as pool:
        other = pool.submit(open_authority, tmp_path)
        try:
            assert asked.wait(10)
            key_pem, certificate_pem = make_authority(datetime.datetime.now(datetime.UTC))
            (tmp_path / "ca-cert.pem").write_bytes(certificate_pem)
            (tmp_path / "ca-key.pem").touch(0o600)
            (tmp_path / "ca-key.pem").write_bytes(key_pem)
        finally:
            os.close(folder)
        assert other.result(10).certificate.read_bytes() == certificate_pem


def test_a_made_ca_signs_and_does_nothing_else() -> None:
    key_pem, certificate_pem = make_authority(NOW)
    check_authority(key_pem, certificate_pem, NOW)
    made = x509.load_pem_x509_certificate(certificate_pem)
    usage = made.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.crl_sign, usage.digital_signature) == (True, True, False)
    assert made.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert make_authority(NOW)[1] != certificate_pem


def test_a_key_in_an_unusable_form_is_refused() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    other = ed25519.Ed25519PrivateKey.generate()
    with pytest.raises(AuthorityError, match=r"ca-key\.pem is not an unencrypted PEM private key"):
        check_authority(pem(key, b"password"), certificate(key), NOW)
    with pytest.raises(AuthorityError, match=r"ca-key\.pem is not an unencrypted PEM private key"):
        check_authority(b"nonsense", certificate(key), NOW)
    with pytest.raises(AuthorityError, match=r"ca-key\.pem holds a \w*Ed25519PrivateKey"):
        check_authority(pem(other), certificate(other), NOW)


def test_a_certificate_that_cannot_sign_for_the_key_is_refused() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(AuthorityError, match=r"ca-cert\.pem is not a PEM certificate"):
        check_authority(pem(key), b"nonsense", NOW)
    with pytest.raises(AuthorityError, match=r"ca-key\.pem is not the key of ca-cert\.pem"):
        check_authority(pem(ec.generate_private_key(ec.SECP256R1())), certificate(key), NOW)
    for ca in (False, None):
        with pytest.raises(AuthorityError, match="no certificate authority"):
            check_authority(pem(key), certificate(key, ca=ca), NOW)


def test_a_certificate_outside_its_time_is_refused_with_its_dates() -> None:
    key_pem, certificate_pem = make_authority(NOW)
    for when in (NOW - datetime.timedelta(days=3), NOW + VALIDITY):
        with pytest.raises(AuthorityError, match="valid from 2026-11-28 until 2036-11-27, not now"):
            check_authority(key_pem, certificate_pem, when)

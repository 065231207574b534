"""Keeps the interception CA in ``--ca-dir``.

Promise: ``open_authority`` returns with these files in place, each one written whole or not at all:
``ca-key.pem`` (mode 0600), ``ca-cert.pem`` (what an agent adds to its trust store), ``ca-bundle.pem``
(certifi's roots and our certificate in one file: ``SSL_CERT_FILE`` and ``REQUESTS_CA_BUNDLE`` replace the
trust store, they do not add to it), ``ca-truststore.p12`` (the same for Java, which reads no PEM), and the
private folder ``mitmproxy`` (mode 0700) with the one file layout mitmproxy reads. A key that other users can
read is refused, not repaired: it may have been read already. ``bundle_path`` puts the bundle and the trust
store, and no key, into a folder that agents may see.
Concurrency: blocking file access, one process at a time by a lock on the folder; call it from a thread.
"""

import contextlib
import datetime
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import certifi

from sidecar.intercept.certificate import AuthorityError, check_authority, make_authority
from sidecar.intercept.trust import TRUSTSTORE, java_truststore

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class Authority:
    """Where the CA is: ``certificate`` and ``bundle`` are for agents, ``confdir`` is for mitmproxy alone."""

    certificate: Path
    bundle: Path
    confdir: Path


def open_authority(ca_dir: Path, bundle_path: Path | None = None) -> Authority:
    """Load the CA from ``ca_dir``, or make it there when there is none; write what is derived from it.

    ``bundle_path`` is where the bundle goes too, the trust store beside it; the result then names that one.
    Raises AuthorityError when a file is missing, unreadable, unsafe or no CA.
    """
    try:
        ca_dir.mkdir(parents=True, exist_ok=True)
        with _locked(ca_dir):
            authority = _open_locked(ca_dir)
    except OSError as error:
        raise AuthorityError(
            f"--ca-dir {str(ca_dir)!r}: {error}; the sidecar must be able to read and write there"
        ) from error
    except AuthorityError as error:
        raise AuthorityError(f"--ca-dir {str(ca_dir)!r}: {error}") from error
    if bundle_path is None or bundle_path == authority.bundle:
        return authority
    try:
        bundle_path.parent.mkdir(parents=True, exist_ok=True)
        _write_trust(bundle_path, authority.bundle.read_bytes())
    except OSError as error:
        raise AuthorityError(
            f"--ca-bundle {str(bundle_path)!r}: {error}; the sidecar must be able to write its folder"
        ) from error
    return replace(authority, bundle=bundle_path)


def _open_locked(ca_dir: Path) -> Authority:
    key_path, certificate_path = ca_dir / "ca-key.pem", ca_dir / "ca-cert.pem"
    now = datetime.datetime.now(datetime.UTC)
    if key_path.exists() != certificate_path.exists():
        missing, found = sorted((key_path, certificate_path), key=Path.exists)
        raise AuthorityError(f"{found.name} is there, {missing.name} is not; put both, or remove {found.name}")
    if not key_path.exists():
        key, certificate = make_authority(now)
        _write(key_path, key, 0o600)
        _write(certificate_path, certificate, 0o644)
    key, certificate = _read_private(key_path), certificate_path.read_bytes()
    check_authority(key, certificate, now)
    confdir = _private_folder(ca_dir / "mitmproxy")
    _write(confdir / "mitmproxy-ca.pem", _lines(key) + certificate, 0o600)
    bundle_path = ca_dir / "ca-bundle.pem"
    _write_trust(bundle_path, _lines(Path(certifi.where()).read_bytes()) + certificate)
    return Authority(certificate=certificate_path, bundle=bundle_path, confdir=confdir)


def _write_trust(path: Path, bundle: bytes) -> None:
    """The bundle and Java's form of it beside it, unless both are there already."""
    store = path.with_name(TRUSTSTORE)
    if store.exists() and path.exists() and path.read_bytes() == bundle:
        return
    _write(store, java_truststore(bundle), 0o644)
    _write(path, bundle, 0o644)


def _lines(pem: bytes) -> bytes:
    """End with a newline, so that another PEM block can follow."""
    return pem if pem.endswith(b"\n") else pem + b"\n"


def _read_private(path: Path) -> bytes:
    """Read a file that only its owner may touch, judging the very file that is read."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & _OTHERS:
            raise AuthorityError(
                f"{path.name} has mode {mode:04o}, so other users can reach the CA's key; replace key and "
                "certificate, or, where nobody can have read it, set mode 0600"
            )
        return file.read()


def _private_folder(path: Path) -> Path:
    path.mkdir(mode=0o700, exist_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        raise AuthorityError(f"folder {path.name} has mode {mode:04o}; it holds the CA's key: set mode 0700")
    return path


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace ``path`` in one step; the new file has ``mode`` before it has its name."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that two sidecars that start at once agree on one CA."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

"""Where an export goes: a folder at any fsspec URL, to which complete parts are added and nothing else is done.

Promise: a part is there whole or not at all. On a local disk it is written beside its place, flushed and renamed;
on an object store it is uploaded from a local file, and is there when the upload is complete; elsewhere it is
uploaded under another name and renamed. Errors name the target without credentials. Blocking; one thread at a time.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from sidecar.export.errors import ExportError, ExportExtraError
from sidecar.export.formats import Format, FormatName

_PART = re.compile(r"part-(\d{6,})-[0-9a-f]{8}(\.parquet|\.jsonl)")
_SUFFIXES: dict[str, FormatName] = {".parquet": "parquet", ".jsonl": "jsonl"}
_UPLOADS_ARE_ATOMIC = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "cos", "obs", "memory"}
_LOCK = ".tito-export.lock"
_UNFINISHED = ".tito-export.part"


def without_credentials(url: str) -> str:
    """A URL for messages: what may hold a key is left out."""
    return re.sub(r"//[^/@]*@", "//", url.partition("?")[0])


class Target:
    """The folder. Use as a context manager: a local one is locked for as long."""

    def __init__(self, url: str, form: Format, options: Mapping[str, Any]) -> None:
        """Raises `ExportError` for a URL that nothing here can open, `ExportExtraError`."""
        self.shown = without_credentials(url)
        self._form = form
        self._fs, self._folder = self._open(url, options)
        self._is_local = "file" in _protocols(self._fs)
        self._lock: IO[bytes] | None = None
        self._next = 0

    def _open(self, url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
        try:
            fsspec = import_module("fsspec")
        except ImportError as error:
            raise ExportExtraError(error) from error
        scheme = url.partition("://")[0]
        try:
            fs, folder = fsspec.url_to_fs(url, skip_instance_cache=True, **options)
        except ImportError as error:
            raise ExportError(
                f"--to is {self.shown}: {scheme}:// needs another package ({error}); install it beside tito-sidecar"
            ) from error
        except ValueError as error:
            if "rotocol not known" not in str(error):
                raise self._error("cannot be opened", error) from error
            raise ExportError(
                f"--to is {self.shown}: nothing here knows {scheme}://; give a path, or a URL that fsspec can "
                "write, such as s3://BUCKET/FOLDER"
            ) from error
        except Exception as error:
            raise self._error("cannot be opened", error) from error
        return fs, folder.rstrip("/") or folder

    def __enter__(self) -> Target:
        """Make a local folder and lock it. Raises `ExportError`."""
        if not self._is_local:
            return self
        try:
            folder = Path(self._folder)
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / _LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.__exit__()
            raise ExportError(f"--to is {self.shown}: another export writes there; wait for its end") from error
        except OSError as error:
            self.__exit__()
            raise self._error("cannot be written", error) from error
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock; remove what a part that was not completed left."""
        if self._lock is not None:
            (Path(self._folder) / _UNFINISHED).unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def stored_keys(self) -> Iterator[tuple[str, str, int]]:
        """The keys of all rows that are there. Raises `ExportError`, also for parts of another format, which would
        keep readers of the folder from loading it."""
        for name in self._parts():
            try:
                with self._fs.open(f"{self._folder}/{name}", "rb") as file:
                    yield from self._form.keys(file, name)
            except ExportError:
                raise
            except Exception as error:
                raise self._error(f"cannot be read ({name})", error) from error

    def _parts(self) -> list[str]:
        """Names of the parts, in order; the next one gets the number behind them."""
        try:
            self._fs.invalidate_cache()
            found = self._fs.ls(self._folder, detail=False)
        except FileNotFoundError:
            return []  # a bucket that does not exist is told of with the first upload
        except Exception as error:
            raise self._error("cannot be listed", error) from error
        parts = []
        for name in sorted(path.rpartition("/")[2] for path in found):
            part = _PART.fullmatch(name)
            if part is None:
                continue
            if part[2] != self._form.suffix:
                raise ExportError(
                    f"--to is {self.shown}: it holds an export in format {_SUFFIXES[part[2]]} ({name}); give that "
                    "--format, or another folder"
                )
            self._next = max(self._next, int(part[1]) + 1)
            parts.append(name)
        return parts

    @contextmanager
    def spool(self) -> Iterator[Path]:
        """A local file for a part that is being written; gone afterwards unless `put` has moved it."""
        if self._is_local:
            path = Path(self._folder) / _UNFINISHED
        else:
            descriptor, name = tempfile.mkstemp(prefix="tito-export-")
            os.close(descriptor)
            path = Path(name)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def put(self, spool: Path) -> str:
        """Add the complete file as the next part; its name. Raises `ExportError`."""
        name = f"part-{self._next:06d}-{secrets.token_hex(4)}{self._form.suffix}"
        place = f"{self._folder}/{name}"
        try:
            if self._is_local:
                _rename_durably(spool, Path(place))
            elif _protocols(self._fs) & _UPLOADS_ARE_ATOMIC:
                self._fs.put_file(str(spool), place)
            else:
                self._fs.makedirs(self._folder, exist_ok=True)
                self._fs.put_file(str(spool), f"{self._folder}/.{name}")
                self._fs.mv(f"{self._folder}/.{name}", place)
        except Exception as error:
            raise self._error("cannot be written", error) from error
        self._next += 1
        return name

    def _error(self, what: str, error: Exception) -> ExportError:
        text = " ".join(str(error).split()) or type(error).__name__
        return ExportError(f"--to is {self.shown}: it {what}: {text}; {_remedy(error)}")


def _remedy(error: Exception) -> str:
    name = type(error).__name__
    if "Credential" in name or "credentials" in str(error):
        return (
            "give credentials as the storage's own tools read them, for S3 AWS_ACCESS_KEY_ID and _SECRET_ACCESS_KEY"
        )
    if isinstance(error, PermissionError):
        return "allow this user to list, read and write there, or give another place"
    if isinstance(error, FileNotFoundError):
        return "create the bucket or folder first"
    if isinstance(error, OSError) and error.errno == 28:  # ENOSPC
        return "make room there"
    return "check the URL, and for S3-compatible storage AWS_ENDPOINT_URL"


def _protocols(fs: Any) -> set[str]:
    return {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)


def _rename_durably(spool: Path, place: Path) -> None:
    for path in (spool, place.parent):
        if path == place.parent:
            spool.replace(place)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

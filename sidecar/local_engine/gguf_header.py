"""The metadata at the head of a GGUF file (version 2 and 3, little-endian).

Promise: every key with its value and where that value's bytes lie in the file, in a fraction of a second: the
`gguf` package makes an object per array element and takes seconds for a vocabulary. Format: ggml's GGUF
specification. Concurrency: blocking reads, no state.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.local_engine.errors import ModelFileError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}

type Value = int | float | bool | str | tuple["Value", ...]


@dataclass(frozen=True)
class Entry:
    """A value and the file offset of its first byte (of an array: of its first element)."""

    value: Value
    offset: int


def read_header(path: Path) -> dict[str, Entry]:
    """Return the metadata of the GGUF file at `path`; raises ModelFileError if it is no such file."""
    with path.open("rb") as file:
        # The header of a 98 MB file is 2 MB; reading the rest too costs less than many small reads.
        cursor = _Cursor(file.read())
    try:
        magic, version, _tensors, count = cursor.take("4sIQQ")
        if magic != _MAGIC or version not in _VERSIONS:
            raise ModelFileError(f"{path} is not a GGUF file of version 2 or 3")
        return dict(cursor.entry() for _ in range(count))
    except (struct.error, KeyError, UnicodeDecodeError) as error:
        raise ModelFileError(f"the GGUF header of {path} is damaged: {error}") from error


class _Cursor:
    """Reads values one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self._data, self._at)
        self._at += struct.calcsize(f"<{layout}")
        return values

    def entry(self) -> tuple[str, Entry]:
        key = self.string()
        (kind,) = self.take("I")
        if kind != _ARRAY:
            offset = self._at
            return key, Entry(self.value(kind), offset)
        kind, length = self.take("IQ")
        offset = self._at
        return key, Entry(self.array(kind, length), offset)

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.string()
        scalar: int | float | bool = self.take(_SCALARS[kind])[0]
        return scalar

    def array(self, kind: int, length: int) -> tuple[Value, ...]:
        if kind == _STRING:
            return tuple(self.string() for _ in range(length))
        return self.take(f"{length}{_SCALARS[kind]}")

    def string(self) -> str:
        (length,) = self.take("Q")
        start = self._at
        self._at += length
        if self._at > len(self._data):
            raise struct.error("a string goes past the end of the file")
        return self._data[start : self._at].decode()

"""The two formats of a part: rows into a local file, and the keys of a part's rows out again.

Promise: `Writer.close` leaves a complete file; memory is bounded by a row group (16 MiB) and the largest row. One
thread at a time, which blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np
import orjson

from sidecar.export.errors import ExportError, ExportExtraError
from sidecar.export.rows import COLUMNS, KEY_COLUMNS, TYPED_COLUMNS, Row

FormatName = Literal["parquet", "jsonl"]

_GROUP_BYTES = 16 << 20
_LINE = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY

Key = tuple[str, str, int]
"""Session id, revision, segment index."""


class Writer(Protocol):
    """Writes the rows of one part."""

    def add(self, row: Row) -> None:
        """Append a row."""

    def close(self) -> None:
        """Complete the file."""

    @property
    def size(self) -> int:
        """Bytes written and held, about."""


class Format(Protocol):
    """One format. `suffix` ends the name of its parts."""

    suffix: str

    def writer(self, path: Path) -> Writer:
        """A writer of a new part."""

    def keys(self, file: IO[bytes], name: str) -> Iterator[Key]:
        """The keys of a part's rows. Raises `ExportError` for a file that is none of ours."""


def format_of(name: str) -> Format:
    """The format of that name. Raises `ExportError`, `ExportExtraError`."""
    if name == "jsonl":
        return JsonLines()
    if name == "parquet":
        return Parquet()
    raise ExportError(f"--format is {name!r}; choose parquet or jsonl")


class JsonLines:
    """A JSON object per line."""

    suffix = ".jsonl"

    def writer(self, path: Path) -> Writer:
        """See `Format`."""
        return _LineWriter(path)

    def keys(self, file: IO[bytes], name: str) -> Iterator[Key]:
        """See `Format`. Reads all of the part."""
        for number, line in enumerate(file, 1):
            try:
                row = orjson.loads(line)
                session_id, revision, index = (row[column] for column in KEY_COLUMNS)
            except (ValueError, TypeError, KeyError) as error:
                raise _not_ours(name, f"line {number}: {error!r}") from None
            yield session_id, revision, index


class _LineWriter:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.size = 0

    def add(self, row: Row) -> None:
        # as doubles: the shortest text of a float32 is that of another double
        exact = {name: value for name, value in row.items() if name not in TYPED_COLUMNS}
        exact["full_logprobs"] = row["full_logprobs"].astype(np.float64)
        self.size += self._file.write(orjson.dumps(exact, option=_LINE))

    def close(self) -> None:
        self._file.close()


class Parquet:
    """Apache Parquet, compressed with zstd, in row groups of about 16 MiB."""

    suffix = ".parquet"

    def __init__(self) -> None:
        try:
            self._pyarrow: Any = import_module("pyarrow")
            self._parquet: Any = import_module("pyarrow.parquet")
        except ImportError as error:
            raise ExportExtraError(error) from error
        self._schema = self._pyarrow.schema([(name, self._type(kind)) for name, kind in COLUMNS.items()])

    def _type(self, kind: str) -> Any:
        if kind.startswith("list<"):
            return self._pyarrow.list_(self._type(kind[5:-1]))
        return self._pyarrow.bool_() if kind == "bool" else getattr(self._pyarrow, kind)()

    def writer(self, path: Path) -> Writer:
        """See `Format`."""
        writer = self._parquet.ParquetWriter(path, self._schema, compression="zstd")
        return _GroupWriter(self._pyarrow, self._schema, writer)

    def keys(self, file: IO[bytes], name: str) -> Iterator[Key]:
        """See `Format`. Reads three columns of the part, not its tokens."""
        pyarrow = self._pyarrow
        try:
            part = self._parquet.ParquetFile(file)
        except pyarrow.ArrowInvalid as error:
            raise _not_ours(name, str(error)) from None
        lacking = [column for column in KEY_COLUMNS if column not in part.schema_arrow.names]
        if lacking:
            raise _not_ours(name, f"it has no column {lacking[0]}")
        for batch in part.iter_batches(columns=list(KEY_COLUMNS)):
            yield from zip(*(batch.column(column).to_pylist() for column in KEY_COLUMNS), strict=True)


class _GroupWriter:
    def __init__(self, pyarrow: Any, schema: Any, writer: Any) -> None:
        self._pyarrow, self._schema, self._writer = pyarrow, schema, writer
        self._group: list[Any] = []
        self._group_bytes = 0
        self._written = 0

    @property
    def size(self) -> int:
        """See `Writer`: before compression."""
        return self._written + self._group_bytes

    def add(self, row: Row) -> None:
        table = self._pyarrow.Table.from_pylist([row], schema=self._schema)
        self._group.append(table)
        self._group_bytes += table.nbytes
        if self._group_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._group:
            table = self._pyarrow.concat_tables(self._group).combine_chunks()
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._written += self._group_bytes
            self._group, self._group_bytes = [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


def _not_ours(name: str, why: str) -> ExportError:
    return ExportError(f"--to holds {name}, which is no part of an export ({why}); give a folder of its own")

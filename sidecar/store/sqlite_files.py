"""Whether SQLite's files are still where they were opened: it goes on writing into a file that was deleted.

Promise: what is committed after `check` went into files that the next start will find. Used by the writer's thread
alone; three `stat` calls, microseconds.
"""

from __future__ import annotations

from pathlib import Path

from sidecar.store.protocol import StoreError


class FilesGone(StoreError):  # noqa: N818 - what became of the files
    """A file of the database was deleted, moved or replaced while it was in use."""

    def __init__(self, gone: Path, database: Path) -> None:
        super().__init__(
            f"{gone} was deleted or replaced while it was in use, so nothing more is stored in {database}; "
            "put the file back, or stop the sidecar and start it again"
        )
        self.log_only = gone != database
        """The database itself is in its place; what its log holds can be moved into it."""


class OpenFiles:
    """The database, its write-ahead log and the log's index, as the first `check` found them."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._paths = [
            database,
            database.with_name(f"{database.name}-wal"),
            database.with_name(f"{database.name}-shm"),
        ]
        self._known: list[tuple[int, int]] | None = None

    def check(self) -> None:
        """Inside a transaction, when all of them exist. Raises `FilesGone`."""
        found = [self._identity(path) for path in self._paths]
        if self._known is None:
            self._known = found
        for path, now, known in zip(self._paths, found, self._known, strict=True):
            if now != known:
                raise FilesGone(path, self._database)

    def _identity(self, path: Path) -> tuple[int, int]:
        try:
            found = path.stat()
        except OSError as error:
            raise FilesGone(path, self._database) from error
        return found.st_dev, found.st_ino

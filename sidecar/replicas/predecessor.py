"""Which sidecar had this state directory before, if it is certain that it is gone.

Promise: the lock of a file lasts as long as the process that holds it, so whoever gets it knows that its
predecessor has ended, `kill -9` included; a process that is only stopped keeps it. A wrong answer (a file system
without locks between machines) costs the other one a lease, which it gets back, and no data. Blocks briefly; used
from one thread.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)


class StateDirLock:
    """The lock file of a state directory. Its text is the id of the sidecar that has it, or had it last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> str | None:
        """Take the lock if it is free; the id of the sidecar that had it last. Raises `OSError`."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                log.warning("%s cannot be locked (%s): a restart waits for its own lease", self._path, error)
            return None
        self._descriptor = descriptor
        return os.pread(descriptor, 256, 0).decode("ascii", "replace").strip() or None

    def write(self, sidecar_id: str) -> None:
        """Name the sidecar that has the lock; nothing without the lock."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, sidecar_id.encode(), 0)

    def release(self) -> None:
        """Let the next one have it. Safe to call again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

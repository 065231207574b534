"""Files that an agent left, read by a trainer that does not trust it. Functions without state."""

from __future__ import annotations

import os
import stat
from pathlib import Path

RESULT_BYTES = 1024 * 1024


class AgentFileError(ValueError):
    """What the agent left is no plain file of bearable size."""


def read_agent_file(path: Path, limit: int = RESULT_BYTES) -> bytes | None:
    """The file's content, None where there is none.

    A link is not followed (it could name a file of the trainer's), a pipe or device is not waited for. Raises
    `AgentFileError`, also on more than `limit` bytes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AgentFileError(f"{path.name} cannot be read: {error.strerror}; it must be a plain file") from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise AgentFileError(f"{path.name} is no plain file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise AgentFileError(f"{path.name} has more than {limit} bytes")
    return content

"""Secrets kept in the state directory: made once, mode 0600, read again on the next start."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def secret_file(path: Path) -> str:
    """The secret in `path`; made if there is none. Raises `OSError`, and `PermissionError` for a readable one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise PermissionError(f"{path} has mode {mode:04o}; run chmod 600 on it") from None
        secret = path.read_text().strip()
        if not secret:
            raise PermissionError(f"{path} is empty; remove it, and a new one is made") from None
        return secret
    secret = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
    return secret


def private_dir(path: Path) -> Path:
    """`path` as a directory that only its owner can enter if it is made here."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path

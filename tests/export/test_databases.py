"""Export and the commands on PostgreSQL, and on a database of an older version."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.export.conftest import finalized, save, uids
from tests.store.older import downgrade_file
from tests.store.sqlite_tools import version_of
from tests.support.command import run_command
from tests.support.postgres import postgres, postgres_url

__all__ = ["postgres", "postgres_url"]


def test_commands_and_export_work_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    here = ("--store", postgres_url)
    save(postgres_url, [finalized("a", at=2), finalized("b", at=1)], steps=70)
    for added in (2, 0):
        done = run_command("export", *here, "--to", tmp_path / "out")
        assert (done.code, done.err, done.out.split()[0]) == (0, "", str(added))
    assert uids(tmp_path / "out") == ["b/0", "a/0"]
    listed = [json.loads(line) for line in run_command("sessions", "ls", "--json", *here).out.splitlines()]
    assert [(one["session_id"], one["steps"]) for one in listed] == [("a", 70), ("b", 70)]
    assert run_command("sessions", "show", "a", *here).code == 0
    assert run_command("sessions", "rm", "a", "--unread", *here).code == 0
    listed = [json.loads(line) for line in run_command("sessions", "ls", "--json", *here).out.splitlines()]
    assert [(one["state"], one["steps"]) for one in listed] == [("discarded", 0), ("finalized", 70)]


def test_a_database_of_an_older_version_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "tito.db"
    here = ("--store", f"sqlite:///{path}")
    save(here[1], [finalized("a")], steps=2)
    asyncio.run(downgrade_file(path))
    assert run_command("export", *here, "--to", tmp_path / "out").code == 0
    assert uids(tmp_path / "out") == ["a/0"]
    assert json.loads(run_command("sessions", "ls", "--json", *here).out)["steps"] == 2
    assert run_command("sessions", "show", "a", *here).code == 0
    assert version_of(path) == "1.0"

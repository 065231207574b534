"""`sessions ls` and `sessions show`: what is listed, in 80 columns and as JSON, beside a running sidecar."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.store import open_store
from sidecar.store.protocol import SessionRow
from tests.export.conftest import finalized, save
from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow
from tests.support.command import Done, refused, run_command
from tests.support.running import Running


def objects(done: Done) -> list[dict[str, Any]]:
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.out.splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with one session in each state, an hour apart."""
    url, now = f"sqlite:///{tmp_path}/tito.db", time.time()
    names = ("open", "unread", "read", "discarded", "expired")
    rows: list[SessionRow] = []
    for hours, name in enumerate(names, 1):
        changes: dict[str, Any] = {"instance_id": f"i-{hours % 2}", "run_id": "r"}
        if name in ("open", "discarded", "expired"):
            changes |= {"state": name, "finalization": None}
        if name == "read":
            changes |= {"drained_at": now}
        rows.append(finalized(name, at=now - hours * 3600, **changes))
    save(url, rows, steps=2)
    return url


def test_sessions_are_listed_newest_first_with_what_they_are(url: str) -> None:
    found = objects(run_command("sessions", "ls", "--store", url, "--json"))
    assert [one["session_id"] for one in found] == ["open", "unread", "read", "discarded", "expired"]
    assert [one["unread"] for one in found] == [False, True, False, False, False]
    unread = found[1]
    assert (unread["state"], unread["steps"], unread["segments"], unread["reward"]) == ("finalized", 2, 1, 1.0)
    assert (unread["instance_id"], unread["run_id"], unread["drained_at"]) == ("i-0", "r", None)
    shown = run_command("sessions", "ls", "--store", url)
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0] == ["session", "instance", "state", "steps", "age", "idle"]
    assert lines[1] == ["open", "i-1", "open", "2", "60m", "60m"]
    assert lines[2] == ["unread", "i-0", "finalized,", "unread", "2", "2h", "2h"]
    assert lines[3] == ["read", "i-1", "finalized,", "read", "2", "3h", "3h"]


def test_filters_choose(url: str) -> None:
    def listed(*flags: str) -> list[str]:
        return [
            one["session_id"] for one in objects(run_command("sessions", "ls", "--store", url, "--json", *flags))
        ]

    assert listed("--state", "finalized") == ["unread", "read"]
    assert listed("--state", "open,expired") == ["open", "expired"]
    assert listed("--unread") == ["unread"]
    assert listed("--instance-id", "i-0") == ["unread", "discarded"]
    assert listed("--run-id", "other") == []
    assert listed("--limit", "2") == ["open", "unread"]
    assert (
        "... and 3 older; --limit N lists more."
        in run_command("sessions", "ls", "--store", url, "--limit", "2").out
    )


def test_the_tables_fit_80_columns_and_cannot_steer_the_terminal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tito.db"
    long = "x" * 100 + "\x1b[2J"
    save(url, [finalized(long, instance_id="[red]" + long, metadata={"k": long}, run_id=long)], steps=60)
    for arguments in (("ls",), ("show", long)):
        shown = run_command("sessions", *arguments, "--store", url)
        assert shown.code == 0
        assert all(len(line) <= 80 for line in shown.out.splitlines()), shown.out
        assert "\x1b" not in shown.out
        assert "[red]" in shown.out
    assert "20 earlier ones are left out; --json has all." in shown.out
    [row] = objects(run_command("sessions", "ls", "--store", url, "--json"))
    assert row["session_id"] == long


def test_an_empty_list_says_so(tmp_path: Path) -> None:
    save(f"sqlite:///{tmp_path}/tito.db", [])
    assert run_command("sessions", "ls", "--state-dir", tmp_path).out == "No session.\n"


def test_show_tells_steps_segments_and_what_does_not_train(url: str) -> None:
    shown = json.loads(run_command("sessions", "show", "unread", "--store", url, "--json").out)
    assert [step["step_id"] for step in shown["steps"]] == ["step-0", "step-1"]
    assert shown["steps"][1]["parent"] == "step-0"
    assert shown["segments"] == [
        {
            "segment_index": 0,
            "reason": "root",
            "is_anchor": True,
            "finish_reason": "stop",
            "steps": 2,
            "tokens": 10,
            "trained_tokens": 4,
        }
    ]
    text = run_command("sessions", "show", "unread", "--store", url).out
    assert text.startswith("Session unread, finalized, unread\n")
    assert "reward" in text and "anchor" in text
    still_open = run_command("sessions", "show", "open", "--store", url).out
    assert "These are the segments if it were finalized now." in still_open


async def test_a_running_sidecar_is_read_while_it_writes(sidecar: Running, tmp_path: Path) -> None:
    body, here = ask(), ("--state-dir", tmp_path / "state")
    for turns in (1, 2):
        sidecar.engine.replies.append(Reply(text="Yes."))
        answer = completion(await sidecar.chat("s", body)).choices[0].message.model_dump(exclude_none=True)
        body = follow(body, answer, "Go on.")
        [listed] = objects(await asyncio.to_thread(run_command, "sessions", "ls", "--json", *here))
        assert (listed["session_id"], listed["state"], listed["steps"]) == ("s", "open", turns)
        assert listed["active_at"] > listed["created_at"]
    view = await sidecar.view("s")
    done = await asyncio.to_thread(run_command, "sessions", "show", "s", "--json", *here)
    shown = json.loads(done.out)
    same = ("step_id", "parent", "state", "context_tokens", "output_tokens", "versions")
    assert [[step[name] for name in same] for step in shown["steps"]] == [
        [step[name] for name in same] for step in view["steps"]
    ]


async def test_reading_changes_nothing(url: str, tmp_path: Path) -> None:
    before = contents(tmp_path)
    await asyncio.to_thread(run_command, "sessions", "ls", "--store", url)
    await asyncio.to_thread(run_command, "sessions", "show", "read", "--store", url)
    assert contents(tmp_path) == before
    store = open_store(url, read_only=True)
    await store.start()
    assert await store.counts() == {"sessions": 5, "steps": 10}
    await store.close()


def test_wrong_use_is_refused_with_one_line(url: str, tmp_path: Path) -> None:
    here = ("--store", url)
    refused(run_command("sessions", "ls", "--state", "finished", *here), "--state is 'finished'", "discarded")
    refused(run_command("sessions", "show", "never", *here), "'never' is not in the store")
    refused(run_command("sessions", "ls", "--state-dir", tmp_path / "none"), "there is no such file")
    refused(run_command("sessions", "ls", "--store", "mysql://x/y"), "mysql")
    assert run_command("sessions", "show").code == 2
    assert run_command("sessions", "ls", "--limit", "0", *here).code == 2

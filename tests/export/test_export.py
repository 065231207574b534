"""What an export holds, and that a repeat adds only what is new."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from rich.console import Console

from sidecar.export import formats
from sidecar.export.formats import format_of
from sidecar.export.progress import progress
from sidecar.export.rows import COLUMNS, KEY_COLUMNS, TYPED_COLUMNS, Known
from sidecar.export.run import Totals, export
from sidecar.export.target import Target
from sidecar.store import open_store
from sidecar.store.listing import SessionFilter
from sidecar.tito.fingerprint import digest
from tests.export.conftest import USER, Cli, finalized, parts, rows, save, uids
from tests.tito.builders import step

ROOT = Path(__file__).resolve().parents[2]
FINALIZED = SessionFilter(("finalized",))
FORMATS = ["parquet", "jsonl"]


@pytest.mark.parametrize("form", FORMATS)
def test_a_repeat_adds_only_new_sessions_and_leaves_the_parts_alone(
    command: Cli, tmp_path: Path, url: str, form: str
) -> None:
    out = tmp_path / "out"
    flags = ("export", "--store", url, "--to", out, "--format", form)
    save(url, [finalized("a", at=5), finalized("b", at=3)])
    done = command(*flags)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"2 new segments of 2 sessions in 1 parts to {out}; 0 sessions had nothing new")
    assert uids(out) == ["b/0", "a/0"], "oldest first"
    first = {name: (out / name).read_bytes() for name in parts(out)}
    assert command(*flags).out.startswith("0 new segments of 0 sessions in 0 parts")
    assert parts(out) == list(first)
    save(url, [finalized("c", at=1)])
    assert command(*flags).out.startswith("1 new segments of 1 sessions in 1 parts")
    assert uids(out) == ["b/0", "a/0", "c/0"]
    assert {name: (out / name).read_bytes() for name in first} == first


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("tokens", [2, 100_000], ids=["as the part ends", "as a row is written"])
def test_a_full_disk_is_told_and_leaves_no_part(
    command: Cli, tmp_path: Path, url: str, form: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 would say that all but some sessions were written."""
    out = tmp_path / "out"
    save(url, [finalized("a")], tokens=tokens)
    kind = {"parquet": formats.Parquet, "jsonl": formats.JsonLines}[form]
    real = kind.writer
    monkeypatch.setattr(kind, "writer", lambda self, path: real(self, Path("/dev/full")))
    done = command("export", "--store", url, "--to", out, "--format", form)
    assert done.code == 2
    assert f"--to is {out}: a part cannot be written on this machine: " in done.err
    assert "No space left on device" in done.err
    assert parts(out) == []


@pytest.mark.parametrize("form", FORMATS)
def test_columns_have_one_type_each_and_text_is_never_null(
    command: Cli, tmp_path: Path, url: str, form: str
) -> None:
    several = {**(finalized("b").finalization or {}), "reward": {"x": 1}}
    save(url, [finalized("a"), finalized("b", finalization=several)])
    command("export", "--store", url, "--to", tmp_path / "out", "--format", form)
    found = rows(tmp_path / "out")
    expected = set(COLUMNS) - (set(TYPED_COLUMNS) if form == "jsonl" else set())
    assert all(set(row) == expected for row in found)
    assert all(value is not None for row in found for name, value in row.items() if name not in TYPED_COLUMNS)
    assert [row["reward_json"] for row in found] == ["1.0", '{"x":1}']
    if form == "parquet":
        assert [row["reward"] for row in found] == [1.0, None]


def test_an_id_that_was_used_again_is_exported_again(command: Cli, tmp_path: Path, url: str) -> None:
    out = tmp_path / "out"
    flags = ("export", "--store", url, "--to", out)
    save(url, [finalized("a")])
    command(*flags)
    reply = {"finalization_id": "another", "num_segments": 1}
    save(url, [finalized("a", finalization={**(finalized("a").finalization or {}), "reply": reply})])
    command(*flags)
    assert [(row["uid"], row["finalization_id"]) for row in rows(out)] == [("a/0", "f-a"), ("a/0", "another")]


def test_filters_choose_sessions(command: Cli, tmp_path: Path, url: str) -> None:
    now = time.time()
    save(
        url,
        [
            finalized("new", at=now - 60, instance_id="i", run_id="r"),
            finalized("old", at=now - 7200, instance_id="i", run_id="q"),
            finalized("other", at=now - 60, instance_id="j", run_id="r"),
            finalized("gone", at=now, state="discarded"),
            finalized("late", at=now, state="expired"),
            finalized("open", at=now, state="open", finalization=None),
        ],
    )

    def exported(*flags: str) -> set[str]:
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        assert command("export", "--store", url, "--to", out, *flags).code == 0
        return {row["session_id"] for row in rows(out)}

    assert exported() == {"new", "old", "other"}
    assert exported("--since", "1h") == {"new", "other"}
    assert exported("--since", "1970-01-01T00:00Z") == {"new", "old", "other"}
    assert exported("--instance-id", "i") == {"new", "old"}
    assert exported("--instance-id", "i", "--run-id", "r") == {"new"}
    assert exported("--session-id", "old") == {"old"}
    assert exported("--session-id", "open") == set()
    assert exported("--include-unfinished") == {"new", "old", "other", "open"}


def test_an_unfinished_session_is_a_row_of_its_own_each_time_it_has_grown(
    command: Cli, tmp_path: Path, url: str
) -> None:
    out = tmp_path / "out"
    flags = ("export", "--store", url, "--to", out, "--include-unfinished")
    still_open = finalized("s", state="open", finalization=None)
    for steps in (0, 1, 1, 2):
        save(url, [still_open], steps=steps)
        assert command(*flags).code == 0
    save(url, [finalized("s")], steps=2)
    assert command(*flags).code == 0
    assert [(row["uid"], row["finalized"], len(row["tokens"])) for row in rows(out)] == [
        ("s/0@1-steps", False, 5),
        ("s/0@2-steps", False, 10),
        ("s/0", True, 10),
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_parts_are_cut_by_size_and_a_missing_one_is_made_good(
    command: Cli, tmp_path: Path, url: str, form: str
) -> None:
    out = tmp_path / "out"
    flags = ("export", "--store", url, "--to", out, "--format", form, "--part-size", "4096")
    save(url, [finalized(f"s{number:02}") for number in range(20)], tokens=100)
    command(*flags)
    assert len(parts(out)) > 4
    assert len(uids(out)) == 20
    (out / parts(out)[2]).unlink()
    assert len(uids(out)) < 20
    command(*flags)
    assert sorted(uids(out)) == [f"s{number:02}/0" for number in range(20)]


def test_a_kill_in_the_middle_is_made_good_by_a_repeat(command: Cli, tmp_path: Path, url: str) -> None:
    out = tmp_path / "out"
    flags = ["export", "--store", url, "--to", str(out), "--part-size", "4096"]
    save(url, [finalized(f"s{number:03}") for number in range(80)])
    with subprocess.Popen([sys.executable, "-m", "sidecar.cli", *flags], cwd=ROOT) as process:
        while process.poll() is None and not (out.is_dir() and parts(out)):
            time.sleep(0.001)
        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
    before = uids(out)  # every part is whole
    assert 0 < len(before) < 80
    assert command(*flags).code == 0
    assert sorted(uids(out)) == [f"s{number:03}/0" for number in range(80)]
    assert uids(out)[: len(before)] == before
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == [".tito-export.lock"]


async def test_beside_a_writer_every_repeat_is_whole(tmp_path: Path, url: str) -> None:
    """Sessions are written all the time; in the end each of them is there once."""
    out, store = tmp_path / "out", open_store(url)
    await store.start()

    async def write() -> None:
        for number in range(40):
            record = step(session_id=f"s{number}", message_hashes=(digest(USER),), message_count=2)
            await store.save_session(finalized(f"s{number}", state="open", finalization=None))
            await store.save_step(record, {digest(USER): USER})
            await store.save_session(finalized(f"s{number}", at=float(number % 7)))
            await asyncio.sleep(0.01)

    async def once() -> Totals:
        target = Target(str(out), format_of("parquet"), {})
        show = partial(progress, Console(quiet=True))
        return await export(url, target, format_of("parquet"), FINALIZED, part_bytes=1 << 20, show=show)

    writer, added = asyncio.create_task(write()), []
    while not writer.done():
        added.append((await once()).segments)
    await writer
    added.append((await once()).segments)
    await store.close()
    assert sum(map(bool, added)) > 1, "it was written meanwhile"
    assert sorted(uids(out)) == sorted(f"s{number}/0" for number in range(40))


def test_a_session_that_cannot_be_read_is_named_and_the_others_are_written(
    command: Cli, tmp_path: Path, url: str
) -> None:
    save(url, [finalized("good", at=1), finalized("bad", at=2), finalized("fine", at=3)])

    async def lose() -> None:
        store = open_store(url)
        await store.start()
        await store.transact(
            "loss", lambda one: one.exec_driver_sql("DELETE FROM blob WHERE session_id = 'bad'").rowcount
        )
        await store.close()

    asyncio.run(lose())
    done = command("export", "--store", url, "--to", tmp_path / "out")
    assert done.code == 1
    assert "not exported: session 'bad': session bad has no blob" in done.err
    assert uids(tmp_path / "out") == ["good/0", "fine/0"]


@pytest.mark.parametrize("form", FORMATS)
def test_memory_is_bounded_whatever_is_exported(
    command: Cli, tmp_path: Path, url: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times as many sessions take no more of it."""
    monkeypatch.setattr(formats, "_GROUP_BYTES", 1 << 20)
    pool, tokens = pyarrow.default_memory_pool(), 30_000
    save(url, [finalized("first")])
    command("export", "--store", url, "--to", tmp_path / "first", "--format", form)  # imports what it needs
    peaks = []
    for sessions in (6, 18):
        save(url, [finalized(f"s{number}") for number in range(sessions)], tokens=tokens)
        out = tmp_path / str(sessions)
        held = pool.bytes_allocated()
        tracemalloc.start()
        done = command("export", "--store", url, "--to", out, "--format", form, "--part-size", "1MiB")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (done.code, done.out.split()[0]) == (0, str(sessions + 1))
        assert pool.bytes_allocated() - held < 4 << 20
    assert peaks[1] < 1.5 * peaks[0]


def test_of_two_exports_to_one_folder_the_second_is_refused(command: Cli, tmp_path: Path, url: str) -> None:
    save(url, [finalized("a")])
    with Target(str(tmp_path / "out"), format_of("parquet"), {}):
        done = command("export", "--store", url, "--to", tmp_path / "out")
    assert done.code == 2
    assert "another export writes there" in done.err
    assert command("export", "--store", url, "--to", tmp_path / "out").code == 0


def test_what_is_known_costs_a_number_per_session() -> None:
    known = Known()
    known.add("s", "f", 0)
    known.add("s", "f", 2)
    assert known.missing("s", "f", 4) == [1, 3]
    assert known.missing("s", "g", 2) == known.missing("t", "f", 2) == [0, 1]
    assert KEY_COLUMNS == ("session_id", "revision", "segment_index")


def test_an_empty_store_exports_nothing(command: Cli, tmp_path: Path, url: str) -> None:
    save(url, [])
    done = command("export", "--store", url, "--to", tmp_path / "out")
    assert (done.code, done.out[:14]) == (0, "0 new segments")
    assert parts(tmp_path / "out") == []


def test_a_reader_of_a_part_finds_the_arrays_aligned(command: Cli, tmp_path: Path, url: str) -> None:
    save(url, [finalized("a")], steps=3)
    command("export", "--store", url, "--to", tmp_path / "out")
    [row] = rows(tmp_path / "out")
    lengths: dict[str, Any] = {name: len(row[name]) for name in COLUMNS if COLUMNS[name].startswith("list")}
    assert set(lengths.values()) == {15}

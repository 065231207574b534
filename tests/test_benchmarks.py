"""The benchmarks run and write what they say; their figures are no test's business."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest

from benchmarks.chat_agent import assemble
from benchmarks.held_sessions import conversation, hold
from benchmarks.raw_client import BrokenReply, HttpReply, read_events, unchunked
from benchmarks.raw_server import serve_raw
from benchmarks.soak import Sample, failures, growth
from benchmarks.stream_agents import Plan
from benchmarks.stream_agents import run as run_agents
from benchmarks.stream_engine import Options, StreamEngine, pick

ROOT = Path(__file__).resolve().parents[1]


def test_turn_cost_writes_its_figures_its_table_and_its_plot(qwen3_dir: Path, tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks.turn_cost", "--turns", "20", "--sessions", "2", "--memory-sessions", "3",
         "--output", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    figures = orjson.loads((tmp_path / "turn_cost.json").read_bytes())
    turns = figures["turns"]
    assert [turn["turn"] for turn in turns] == list(range(1, 21))
    assert all(later["tokens"] > earlier["tokens"] for earlier, later in pairwise(turns))
    assert all(turn["sidecar_ms"] > 0 and turn["floor_ms"] > 0 and turn["pass_through_ms"] > 0 for turn in turns)
    assert figures["memory"]["tokens_per_session"] > turns[-1]["tokens"]
    assert "growth from turn" in shown.stdout
    assert (tmp_path / "turn_cost.png").read_bytes().startswith(b"\x89PNG")


def test_turn_cost_refuses_too_few_turns() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks.turn_cost", "--turns", "3"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert shown.returncode == 2
    assert "--turns is 3" in shown.stderr


def test_store_writes_its_figures_its_tables_and_its_plot(qwen3_dir: Path, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as disk:  # pytest closes its own folders to PostgreSQL's user
        shown = run("store", "--seconds", "0.1", "--sessions", "1", "4", "--turns", "16", "--read-tokens", "4096",
                    "--output", str(tmp_path), "--disk", disk)  # fmt: skip
        assert not list(Path(disk).iterdir()), "the databases are gone"
    assert shown.returncode == 0, shown.stderr
    figures = orjson.loads((tmp_path / "store.json").read_bytes())
    loads = [(rate["database"], rate["sessions"]) for rate in figures["rates"]]
    assert loads == [(database, sessions) for database in ("sqlite", "postgresql") for sessions in (0, 1, 4)]
    assert all(rate["steps_per_second"] > 0 and 0 < rate["p50_ms"] <= rate["p99_ms"] for rate in figures["rates"])
    assert [room["database"] for room in figures["room"]] == ["sqlite", "postgresql"]
    assert all(room["on_disk"] > 1 for room in figures["room"])
    ways = [(read["database"], read["way"]) for read in figures["reads"]]
    assert ways == [(database, way) for database in ("sqlite", "postgresql") for way in ("load", "json", "binary")]
    sizes = {read["way"]: read["megabytes"] for read in figures["reads"]}
    assert 0 < sizes["binary"] < sizes["json"]
    assert (tmp_path / "store.png").read_bytes().startswith(b"\x89PNG")


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip


def test_streams_writes_its_figures_its_table_and_its_plot(qwen3_dir: Path, tmp_path: Path) -> None:
    shown = run(
        "streams", "--sessions", "10", "--rate", "10", "--ramp", "0.5", "--quiet-seconds", "0.5",
        "--busy-seconds", "1.5", "--spare-seconds", "1.5", "--root-agents", "1", "--root-words", "3000",
        "--turn-agents", "2", "--held-sessions", "0", "--output", str(tmp_path),
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    figures = orjson.loads((tmp_path / "streams.json").read_bytes())
    for side in ("pass_through", "sidecar"):
        assert figures[side]["agents"]["replies"] == 10
        assert figures[side]["agents"]["errors"] == []
        assert figures[side]["quiet"]["cpu_us_per_event"] > 0
    assert figures["sidecar"]["busy_agents"]["roots"]["prompt_tokens"] > 3000
    assert figures["sidecar"]["busy_agents"]["turns"]["replies"] > 0
    assert figures["collection"]["tracked"] > 0
    assert "10 streams at once, incremental server" in shown.stdout
    assert (tmp_path / "streams.png").read_bytes().startswith(b"\x89PNG")


def test_soak_counts_what_agents_got_and_what_trains(qwen3_dir: Path, tmp_path: Path) -> None:
    shown = run(
        "soak", "--minutes", "0.05", "--agents", "4", "--turns", "2", "--tokens", "60", "--rate", "40",
        "--pause-every", "0.7", "--output", str(tmp_path),
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    figures = orjson.loads((tmp_path / "soak.json").read_bytes())
    assert figures["agents"]["conversations"] >= 4
    assert figures["agents"]["tokens"] == figures["agents"]["trained_tokens"] > 0
    assert sum(pause["preempted"] for pause in figures["pauses"]) > 0
    assert figures["samples"][-1]["resident"] > 0
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")


class TestTheStreamEngine:
    REPLIES = ({"ids": [5, 6, 7], "pieces": ["a", "b", ""]}, {"ids": [8, 9], "pieces": ["c", ""]})

    @pytest.mark.parametrize(("end", "expected"), [([5], (0, 1)), ([5, 6], (0, 2)), ([8], (1, 1))])
    def test_it_goes_on_where_an_aborted_reply_was(self, end: list[int], expected: tuple[int, int]) -> None:
        reply, held = pick(list(self.REPLIES), [1, 2, 3, *end])
        assert (reply, held) == (self.REPLIES[expected[0]], expected[1])

    def test_a_prompt_that_ends_with_a_whole_reply_is_a_new_one(self) -> None:
        assert pick(list(self.REPLIES), [1, 5, 6, 7])[1] == 0

    @pytest.mark.parametrize("incremental", [True, False])
    async def test_agents_take_its_streams(self, incremental: bool) -> None:
        engine = StreamEngine(Options(list(self.REPLIES), 200, incremental, 1000))
        pacing = asyncio.ensure_future(engine.pace())
        async with await serve_raw(0, lambda *call: engine.handle(call[0], "POST", "/generate", call[3])) as server:
            port = server.sockets[0].getsockname()[1]
            replies = [{**one, "reasoning": "", "content": "", "command": None} for one in self.REPLIES]
            plan = Plan(port, 6, 0.01, through=True, interval=1, max_tokens=9, replies=replies)
            seen = await run_agents(plan)
            cut = await run_agents(replace(plan, max_tokens=1))
        pacing.cancel()
        assert (seen["replies"], seen["errors"]) == (6, [])
        assert len(cut["errors"]) == 6, "a reply that was cut is none of the policy's"


class TestWholeReplies:
    def test_chunks_are_put_together(self) -> None:
        assert unchunked(memoryview(b"3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n")) == b"abc0123456789"

    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (503, b"{}"),
            (200, b'data: {"choices": []}\n\n'),
            (200, b'data: {"error": {"message": "gone"}}\n\ndata: [DONE]\n\n'),
        ],
        ids=["an error", "no end", "an error event"],
    )
    def test_what_is_broken_is_noticed(self, status: int, body: bytes) -> None:
        with pytest.raises(BrokenReply):
            read_events(HttpReply(status, {}, body, 1, 0.0))

    def test_a_stream_lacks_neither_usage_nor_a_finish_reason(self) -> None:
        last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        usage = {"choices": [], "usage": {"completion_tokens": 1}}
        assert assemble([last, usage])[1] == "stop"
        for events in ([last], [usage], [last, last, usage]):
            with pytest.raises(BrokenReply):
                assemble(events)


class TestTheSoaksVerdict:
    FIGURES: ClassVar[dict[str, Any]] = {
        "agents": {"errors": [], "tokens": 5, "trained_tokens": 5},
        "pauses": [{"at": 1.0, "quiesced": True}],
        "left_behind": {"active": 0, "suspended": 0, "paused": False},
    }

    def test_all_is_well(self) -> None:
        assert failures(self.FIGURES) == []

    @pytest.mark.parametrize(
        "wrong",
        [
            {"agents": {"errors": ["e"], "tokens": 5, "trained_tokens": 5}},
            {"agents": {"errors": [], "tokens": 5, "trained_tokens": 4}},
            {"pauses": [{"at": 1.0, "quiesced": False}]},
            {"left_behind": {"active": 1, "suspended": 0, "paused": False}},
        ],
        ids=["a broken reply", "a lost token", "a loud pause", "a call left behind"],
    )
    def test_what_is_lost_is_told(self, wrong: dict[str, Any]) -> None:
        assert len(failures({**self.FIGURES, **wrong})) == 1

    def test_memory_that_grows_is_seen(self) -> None:
        grown = growth([Sample(second, 2**20 * (100 + second)) for second in range(120)])
        assert grown["mb_per_minute"] == pytest.approx(60)
        assert growth([Sample(second, 2**20) for second in range(120)])["mb_per_minute"] == pytest.approx(0)


def test_a_held_session_has_all_of_its_steps_and_messages() -> None:
    session = hold(3, 20)
    assert len(session.trajectory) == 10
    assert session.readings.find(conversation(3, 20), {}).count == 20

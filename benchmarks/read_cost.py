"""What it costs to read a trajectory, from the store to numpy arrays in the trainer, as JSON and as binary arrays.

`python -m benchmarks.read_cost` puts three sessions into an SQLite file: one of 128K tokens in 150 turns, one with
routed experts, and one whose 64 segments share a prompt of 128K tokens (8.4 million tokens to send, 131 thousand to
keep). Server and client are processes of their own on loopback; memory is what each had at most beyond what it had
before. One read at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from benchmarks.processes import Server, free_port, serving
from sidecar.store import open_store
from sidecar.store.protocol import Store
from sidecar.tito.records import RoutedRows, VersionSpan
from tests.reading.sessions import put_branches, put_step, row
from trainer_hooks.client import ControlClient
from trainer_hooks.control_requests import Arrays

_REPEATS = 5
_FORMS: tuple[Arrays, ...] = ("json", "binary")
SESSIONS = ("one-segment", "routed", "branches")


@dataclass(frozen=True)
class ReadCost:
    """The fastest of a few reads. `server_mb` is the server's peak beyond what it held before."""

    session: str
    form: str
    tokens: int
    megabytes: float
    milliseconds: float
    server_cpu_ms: float
    server_mb: float


async def put_turns(store: Store, session_id: str, tokens: int, turns: int, *, replay: bool = False) -> None:
    """One segment of so many tokens; each turn adds half of its share as context and samples the rest."""
    await store.save_session(row(session_id))
    source, half = np.random.default_rng(7), tokens // turns // 2
    parent = None
    for turn in range(turns):
        start, end = max(0, 2 * half * turn - 1), 2 * half * (turn + 1) - 1
        await put_step(
            store,
            session_id,
            f"{session_id}.{turn}",
            parent,
            f"result {turn}: " + "text of a tool " * (half // 4),
            rows=RoutedRows(start, end, 48, 8, 1) if replay else None,
            sequence=turn,
            context_ids=source.integers(0, 150_000, half),
            output_ids=source.integers(0, 150_000, half),
            output_logprobs=-source.exponential(0.5, half).astype(np.float32),
            version_spans=(VersionSpan(0, half, "v1"),),
            message_count=2 * (turn + 1),
        )
        parent = f"{session_id}.{turn}"


def measure(client: ControlClient, server: Server, session_id: str, form: Arrays) -> ReadCost:
    """Read one session a few times."""
    before = server.resident_bytes()
    best, cpu, tokens = float("inf"), 0, 0
    for _ in range(_REPEATS):
        cpu_before, began = server.cpu_ns(), time.perf_counter()
        data = client.read_trajectory(session_id=session_id, arrays=form)["data"]
        took = time.perf_counter() - began
        if took < best:
            best, cpu = took, server.cpu_ns() - cpu_before
        tokens = sum(len(segment["tokens"]) for segment in data)
        del data
    return ReadCost(
        session_id, form, tokens, _body_megabytes(client, session_id, form), best * 1e3, cpu / 1e6,
        (_peak(server) - before) / 1e6,
    )  # fmt: skip


def _body_megabytes(client: ControlClient, session_id: str, form: Arrays) -> float:
    body = {"session_id": session_id, "arrays": form}
    total = 0
    with client._http.stream("POST", f"{client.base_url}/trajectory/read", json=body) as response:
        for chunk in response.iter_raw():
            total += len(chunk)
    return total / 1e6


def _peak(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def measure_all(
    directory: Path, tokens: int, branches: int, sessions: Sequence[str] = SESSIONS
) -> Iterator[ReadCost]:
    """Each session in a server of its own, so that one's peak is not another's."""
    url = f"sqlite:///{directory}/tito.db"
    asyncio.run(_fill(url, tokens, branches))
    for session_id in sessions:
        for form in _FORMS:
            port = free_port()
            arguments = [url, str(port)]
            with (
                serving(
                    "benchmarks.read_server", arguments, port, directory / "server.log", "/trajectory/stats"
                ) as server,
                ControlClient(server.url) as client,
            ):
                client.read_trajectory(session_id="warm", arrays=form)
                yield measure(client, server, session_id, form)


async def _fill(url: str, tokens: int, branches: int) -> None:
    store = open_store(url)
    await store.start()
    await put_turns(store, "warm", 1000, 10)
    await put_turns(store, "one-segment", tokens, 150)
    await put_turns(store, "routed", tokens, 150, replay=True)
    await put_branches(store, "branches", shared=tokens, branches=branches, own=100, text="word " * 10_000)
    await store.close()


def main() -> None:
    """Measure, print and write `read_cost.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--branches", type=int, default=64)
    parser.add_argument("--output", type=Path, default=Path("bench-output"))
    arguments = parser.parse_args()
    table = Table("session", "arrays", "tokens sent", "MB", "ms", "server CPU ms", "server peak MB")
    with tempfile.TemporaryDirectory() as directory:
        found = list(measure_all(Path(directory), arguments.tokens, arguments.branches))
    for one in found:
        table.add_row(
            one.session, one.form, f"{one.tokens:,}", f"{one.megabytes:.2f}", f"{one.milliseconds:.0f}",
            f"{one.server_cpu_ms:.0f}", f"{one.server_mb:.1f}",
        )  # fmt: skip
    arguments.output.mkdir(parents=True, exist_ok=True)
    figures = {"machine": describe_machine(), "reads": [asdict(one) for one in found]}
    (arguments.output / "read_cost.json").write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    Console().print(table)


if __name__ == "__main__":
    main()

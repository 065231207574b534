"""What interception costs beside the gateway's own work, in one run and one process, and that it lasts.

`python -m benchmarks.intercept [--streams 1000] [--requests 20000] [--rounds 3] [--output DIR]` starts the sidecar
with a reverse listener before a quick engine. Agents make the same calls directly, intercepted over plain HTTP and
intercepted over TLS, in turns; the sidecar's own CPU clock is divided by their requests and events. Then resident
memory is looked at while intercepted requests go by that leave nothing in the store. Last, that many intercepted
TLS streams of two tokens a second run at once, while a task inside the sidecar measures how long its loop stalls.
"""

from __future__ import annotations

import argparse
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.jobs import Job
from benchmarks.load import CONTEXT_LENGTH, start_engine, start_sidecar
from benchmarks.loop_watch import watched
from benchmarks.machine import describe_machine
from benchmarks.policy import make_replies, to_wire
from benchmarks.processes import Server, free_port
from tests.support.npm import npm_tokenizer

WAYS = ("direct", "intercepted", "intercepted, TLS")
_BATCHES = 5
_LONG = 200
"""Tokens of the streams by which an event's cost is told; the turns have one."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one way in: microseconds of the sidecar's CPU, the least of all rounds."""

    way: str
    us_per_turn: float
    us_per_event: float
    us_per_refused_request: float


class Bench:
    """The sidecar, its engines and the agents' plans. One caller."""

    def __init__(self, stack: ExitStack, scratch: Path, tokenizer: Path, tokens: int, rate: float) -> None:
        scratch.mkdir()
        self.scratch = scratch
        self.replies = make_replies(tokenizer, 7, tokens, calls=False)
        options = {"rate": rate, "incremental": True, "context_length": CONTEXT_LENGTH}
        self.engine = start_engine(stack, "engine", scratch, {**options, "replies": to_wire(self.replies)})
        self.reverse = free_port()
        self.sidecar, self.watch = start_sidecar(
            stack, self.engine, tokenizer, scratch, intercept=[f"reverse:https://api.openai.com@{self.reverse}"]
        )
        self.trust = scratch / "state" / "ca" / "ca-cert.pem"
        _wait_for(self.reverse, self.trust)

    def agents(self, way: str, kind: str, name: str, agents: int, calls: int, ramp: float = 0.0) -> dict[str, Any]:
        """Run agents to their end; what they saw. Raises `RuntimeError` if one of them was not served."""
        plan = {
            "port": int(self.sidecar.url.rpartition(":")[2]) if way == "direct" else self.reverse,
            "trust": str(self.trust) if way == WAYS[2] else None,
            "kind": kind,
            "name": name,
            "agents": agents,
            "calls": calls,
            "ramp": ramp,
            "max_tokens": 1 if kind == "turn" else _LONG * 2,
            "replies": [asdict(reply) for reply in self.replies],
        }
        with Job("benchmarks.intercept_agents", plan, self.scratch) as job:
            seen = job.result()
        if seen["errors"]:
            raise RuntimeError(f"{way}, {kind}: {len(seen['errors'])} agents failed: {seen['errors'][:3]}")
        return seen


def measure_costs(bench: Bench, rounds: int, scale: float) -> list[Cost]:
    """Each way and kind once per round, in turns."""
    found: dict[tuple[str, str], list[float]] = {}
    plans = (("turn", 8, 50, "replies"), ("stream", 20, 2, "events"), ("refused", 8, 250, "replies"))
    for number in range(rounds):
        for kind, agents, calls, counted in plans:
            for way in WAYS:
                before = bench.sidecar.cpu_ns()
                seen = bench.agents(
                    way, kind, f"{kind}-{WAYS.index(way)}-{number}", agents, max(1, int(calls * scale))
                )
                spent = (bench.sidecar.cpu_ns() - before) / 1e3 / seen[counted]
                found.setdefault((way, kind), []).append(spent)
    return [Cost(way, *(min(found[way, kind]) for kind, *_ in plans)) for way in WAYS]


def measure_streams(bench: Bench, streams: int, ramp: float) -> dict[str, Any]:
    """So many TLS streams at once."""
    before, cpu, resident = time.monotonic(), bench.sidecar.cpu_ns(), bench.sidecar.resident_bytes()
    seen = bench.agents(WAYS[2], "stream", "many", streams, 1, ramp)
    after = time.monotonic()
    return {
        "streams": streams,
        "events": seen["events"],
        "whole_replies": seen["replies"],
        "seconds": after - before,
        "us_per_event": (bench.sidecar.cpu_ns() - cpu) / 1e3 / seen["events"],
        "grown_kb_per_stream": (bench.sidecar.resident_bytes() - resident) / 1024 / streams,
        "stalls": asdict(watched(bench.watch, before, after)),
    }


def measure_memory(bench: Bench, requests: int) -> Iterator[tuple[int, float]]:
    """Requests so far and resident MiB: half of them on kept connections, half with a connection each."""
    yield 0, _mib(bench.sidecar)
    for batch in range(_BATCHES):
        share = requests // _BATCHES
        bench.agents(WAYS[2], "refused", f"memory-{batch}", 32, max(1, share // 64))
        bench.agents(WAYS[2], "refused", f"fresh-{batch}", max(1, share // 2), 1, ramp=share / 400)
        yield (batch + 1) * share, _mib(bench.sidecar)


def _mib(server: Server) -> float:
    return server.resident_bytes() / 2**20


def _wait_for(port: int, trust: Path) -> None:
    """The listeners come up one after the other, the interceptor's last."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(trust), timeout=5)
            return
        except (OSError, ssl.SSLError):
            time.sleep(0.1)
    raise RuntimeError(f"the interceptor does not answer on port {port}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.intercept", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--streams", type=int, default=1000, help="intercepted streams at once [1000]")
    parser.add_argument("--ramp", type=float, default=10.0, help="seconds in which they arrive [10]")
    parser.add_argument("--requests", type=int, default=20_000, help="while memory is looked at [20000]")
    parser.add_argument("--rounds", type=int, default=3, help="of the costs [3]")
    parser.add_argument("--scale", type=float, default=1.0, help="calls of a round, beside the usual number [1]")
    parser.add_argument("--output", type=Path, default=Path("bench-output"), help="for intercept.json")
    asked = parser.parse_args()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        quick = Bench(stack, scratch / "quick", npm_tokenizer("qwen3"), _LONG, 400.0)
        costs = measure_costs(quick, asked.rounds, asked.scale)
        memory = list(measure_memory(quick, asked.requests))
        steady = Bench(stack, scratch / "steady", npm_tokenizer("qwen3"), int(2 * asked.ramp) + 40, 2.0)
        streams = measure_streams(steady, asked.streams, asked.ramp)
    figures = {"machine": describe_machine(), "costs": [asdict(cost) for cost in costs], "streams": streams}
    asked.output.mkdir(parents=True, exist_ok=True)
    (asked.output / "intercept.json").write_bytes(orjson.dumps({**figures, "memory": memory}))
    _print(costs, streams, memory)


def _print(costs: list[Cost], streams: dict[str, Any], memory: list[tuple[int, float]]) -> None:
    console, own = Console(highlight=False), costs[0]
    table = Table(
        "way", "us per turn", "us per event", "us per refused request", title="CPU of the sidecar's process"
    )
    for cost in costs:
        pairs = zip(asdict(cost).values(), asdict(own).values(), strict=True)
        cells = [f"{mine:.0f} ({mine / base:.2f}x)" for mine, base in pairs if not isinstance(mine, str)]
        table.add_row(cost.way, *cells)
    console.print(describe_machine(), table, sep="\n")
    console.print(f"{streams['streams']} TLS streams at once: {streams['whole_replies']} whole replies", streams)
    console.print("resident MiB after so many intercepted requests:", [(n, round(mib, 1)) for n, mib in memory])


if __name__ == "__main__":
    main()

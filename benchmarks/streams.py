"""A thousand sessions that stream at once through one sidecar process, beside a bare pass-through in the same run.

`python -m benchmarks.streams [--sessions 1000] [--cumulative] [--output DIR]` starts the sidecar and the
pass-through, each behind it an engine that samples at a steady pace, all of them processes of their own; agents in
further processes read every stream to its end and take nothing but whole replies. In a window in which all streams
of both run, each gateway's own CPU clock is divided by its engine's events. Then large prompts and short turns come
to the sidecar besides, while a task inside it measures how long its event loop stalls. Last, a full collection in a
process that holds 1,000 sessions of 320 messages (`held_sessions`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from benchmarks.jobs import Job
from benchmarks.load import Load, Side, Site, start_site
from benchmarks.loop_watch import Stalls, stall_lines, watched
from benchmarks.machine import describe_machine
from benchmarks.stream_tables import print_tables
from tests.support.npm import npm_tokenizer


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which all streams ran. `events` are the engine's, per second; CPU in microseconds for each."""

    seconds: float
    events_per_second: float
    cpu_us_per_event: float
    cpu_share: float
    stalls: Stalls


@dataclass(frozen=True, slots=True)
class Phase:
    """One gateway under load. `quiet`: nothing but the streams; `busy`: with large prompts and turns besides.

    `agents` is what the agents saw (`chat_agent.Tally`), `whole_run_us_per_event` the gateway's CPU from the first
    request to the last byte."""

    quiet: Window
    busy: Window | None
    agents: dict[str, Any]
    busy_agents: dict[str, Any]
    resident_kb_per_stream: float
    whole_run_us_per_event: float
    arrival: Stalls
    end: Stalls


@dataclass(frozen=True, slots=True)
class Mark:
    """One look at a gateway: the time, its CPU and memory, and its engine's counters."""

    at: float
    cpu_ns: int
    resident: int
    counters: dict[str, int]


class Meter:
    """Looks at one gateway. Between `begin` and `end` its agents run."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.first = self.arrived = self.last = self.mark()
        self.windows: list[Window] = []
        self._open = self.first

    def mark(self) -> Mark:
        """Now."""
        server = self.side.gateway
        return Mark(time.monotonic(), server.cpu_ns(), server.resident_bytes(), self.side.stats())

    def all_run(self) -> None:
        """All streams run from here on."""
        self.arrived = self.mark()

    def open_window(self) -> None:
        """Begin to measure."""
        self._open = self.mark()

    def close_window(self, sessions: int) -> Window:
        """Measure up to here. Raises `RuntimeError` if a stream ended meanwhile."""
        before, after = self._open, self.mark()
        if after.counters["running"] < sessions:
            raise RuntimeError(
                f"only {after.counters['running']} of {sessions} streams still ran at the end of a window; "
                "raise --spare-seconds"
            )
        self.last = after
        events, seconds = after.counters["events"] - before.counters["events"], after.at - before.at
        return Window(
            seconds=seconds,
            events_per_second=events / seconds,
            cpu_us_per_event=(after.cpu_ns - before.cpu_ns) / 1e3 / events,
            cpu_share=(after.cpu_ns - before.cpu_ns) / 1e9 / seconds,
            stalls=watched(self.side.watch, before.at, after.at),
        )

    def phase(
        self, quiet: Window, agents: dict[str, Any], busy: Window | None = None, busy_agents: Any = None
    ) -> Phase:
        """All of it, when the last agent has its reply."""
        end, first = self.mark(), self.first
        return Phase(
            quiet,
            busy,
            agents,
            busy_agents or {},
            (self.arrived.resident - first.resident) / self.side.sessions / 1024,
            (end.cpu_ns - first.cpu_ns) / 1e3 / (end.counters["events"] - first.counters["events"]),
            arrival=watched(self.side.watch, first.at, self.arrived.at),
            end=watched(self.side.watch, self.last.at + 1, end.at),
        )


def measure(site: Site) -> tuple[Phase, Phase, dict[str, Any]]:
    """Send the agents to both gateways at once; then go on with the sidecar alone. The last value is what its
    collector says of a full collection while everything streams."""
    load, busy, busy_agents = site.load, None, {}
    bare, full = Meter(site.pass_through), Meter(site.sidecar)
    with (
        Job("benchmarks.stream_agents", site.pass_through.plan(through=True), site.scratch) as bare_agents,
        Job("benchmarks.stream_agents", site.sidecar.plan(through=False), site.scratch) as full_agents,
    ):
        for meter, agents in ((bare, bare_agents), (full, full_agents)):
            meter.side.wait_for_streams(agents)
            meter.all_run()
        for meter in (bare, full):
            meter.open_window()
        time.sleep(load.quiet_seconds)
        bare_quiet, full_quiet = (meter.close_window(load.sessions) for meter in (bare, full))
        through = bare.phase(bare_quiet, bare_agents.result())
        if load.busy_seconds:
            with Job("benchmarks.busy_agents", site.busy_plan(), site.scratch) as job:
                full.open_window()
                time.sleep(load.busy_seconds)
                busy = full.close_window(load.sessions)
                busy_agents = job.result()
        collection = site.sidecar.collect()
        sidecar = full.phase(full_quiet, full_agents.result(), busy, busy_agents)
    return through, sidecar, collection


def held_sessions(load: Load, scratch: Path) -> dict[str, Any]:
    """A full collection in a process that holds that many finished conversations."""
    with Job("benchmarks.held_sessions", {"sessions": load.held_sessions, "messages": 320}, scratch) as job:
        return job.result()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.streams", description=(__doc__ or "").split("\n")[0]
    )
    for name, default, text in (
        ("sessions", 1000, "streams at once"),
        ("rate", 2.0, "tokens per second of each stream"),
        ("ramp", 10.0, "seconds in which the agents arrive"),
        ("quiet-seconds", 15.0, "of the window with streams alone"),
        ("busy-seconds", 20.0, "of the window with large prompts and turns besides; 0: leave it out"),
        ("spare-seconds", 12.0, "that the streams last longer than what is measured should take"),
        ("root-agents", 6, "who send large prompts"),
        ("root-words", 64_000, "of a large prompt, about one token each"),
        ("turn-agents", 40, "who hold conversations of short turns"),
        ("held-sessions", 1000, "held in memory for the full collection; 0: leave it out"),
    ):
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} [{default}]")
    parser.add_argument("--cumulative", action="store_true", help="the engine repeats all ids in each event")
    parser.add_argument("--output", type=Path, default=Path("bench-output"))
    given = vars(parser.parse_args())
    output: Path = given.pop("output")
    output.mkdir(parents=True, exist_ok=True)
    load = Load(**given)
    console = Console(highlight=False, soft_wrap=True, width=120)
    machine = describe_machine()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        site = start_site(stack, load, npm_tokenizer("qwen3"), scratch)
        through, sidecar, collection = measure(site)
        stalls = stall_lines(site.sidecar.watch)
    with tempfile.TemporaryDirectory() as again:
        held = held_sessions(load, Path(again)) if load.held_sessions else {}
    console.print(machine)
    print_tables(console, load, through, sidecar, collection, held)
    name = "streams_cumulative" if load.cumulative else "streams"
    figures = {
        "machine": machine,
        "load": asdict(load),
        "pass_through": asdict(through),
        "sidecar": asdict(sidecar),
        "collection": collection,
        "held": held,
        "stalls": stalls,
    }
    (output / f"{name}.json").write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    from benchmarks.streams_plot import plot  # matplotlib takes a second to import

    plot(figures, output / f"{name}.png")
    console.print(f"written: {output}/{name}.json, {output}/{name}.png")
    errors = [*through.agents["errors"], *sidecar.agents["errors"], *sidecar.busy_agents.get("errors", ())]
    if errors:
        raise SystemExit("\n".join([f"{len(errors)} errors, of which the first are:", *errors[:5]]))


if __name__ == "__main__":
    main()

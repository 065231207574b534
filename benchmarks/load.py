"""What `streams` runs against: the load, and the two gateways that take it, each with an engine. One caller."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.jobs import Job
from benchmarks.loop_watch import stall_lines
from benchmarks.policy import Reply, make_replies, to_wire
from benchmarks.processes import Server, free_port, serving

CONTEXT_LENGTH = 131_072
_KINDS = 7
"""Replies that the policy has: agents that got each other's events would not go unnoticed."""
_BUSY_TOKENS = 4
_ARRIVAL_SECONDS = 120
_COLLECTION_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Load:
    """See the command line of `streams`."""

    sessions: int
    rate: float
    ramp: float
    quiet_seconds: float
    busy_seconds: float
    spare_seconds: float
    root_agents: int
    root_words: int
    turn_agents: int
    held_sessions: int
    cumulative: bool

    def tokens(self, seconds: float) -> int:
        """Of a stream that has to last that long after the last agent has come."""
        return int(self.rate * (self.ramp + seconds + self.spare_seconds))


@dataclass(frozen=True, slots=True)
class Side:
    """A gateway and its engine. `watch`: what its loop writes down (`loop_watch`)."""

    load: Load
    replies: list[Reply]
    engine: Server
    gateway: Server
    watch: Path

    @property
    def sessions(self) -> int:
        """Streams at once."""
        return self.load.sessions

    @property
    def port(self) -> int:
        """Where the agents go."""
        return int(self.gateway.url.rpartition(":")[2])

    def stats(self) -> dict[str, int]:
        """The engine's counters."""
        return engine_stats(self.engine)

    def wait_for_streams(self, agents: Job) -> None:
        """Until all streams run. Raises `RuntimeError` if they never do at the same time."""
        deadline = time.monotonic() + self.load.ramp + _ARRIVAL_SECONDS
        while (running := self.stats()["running"]) < self.sessions:
            if agents.ended or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{running} streams run and not {self.sessions}; raise --spare-seconds, or look at the agents' "
                    f"errors: {agents.result(1)['errors'][:3]}"
                )
            time.sleep(0.1)

    def plan(self, *, through: bool) -> dict[str, Any]:
        """For `stream_agents`."""
        tokens = max(len(reply.ids) for reply in self.replies)
        return {
            "port": self.port,
            "agents": self.sessions,
            "ramp": self.load.ramp,
            "through": through,
            # what the sidecar asks for streaming agents
            "interval": max(8, tokens // 64) if self.load.cumulative else 1,
            "max_tokens": tokens,
            "replies": [asdict(reply) for reply in self.replies],
        }

    def collect(self) -> dict[str, Any]:
        """Make the gateway collect everything now: how long it took, and how many objects were looked at."""
        before = len(self._collections())
        self.gateway.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _COLLECTION_SECONDS
        while len(found := self._collections()) == before and time.monotonic() < deadline:
            time.sleep(0.05)
        return found[-1]

    def _collections(self) -> list[dict[str, Any]]:
        return [line for line in stall_lines(self.watch) if line["kind"] == "asked"]


@dataclass(frozen=True, slots=True)
class Site:
    """The servers of one run."""

    load: Load
    sidecar: Side
    pass_through: Side
    scratch: Path

    def busy_plan(self) -> dict[str, Any]:
        """For `busy_agents`."""
        load = self.load
        return {
            "port": self.sidecar.port,
            "seconds": max(0.5, load.busy_seconds - 1 - _BUSY_TOKENS / load.rate),
            "root_agents": load.root_agents,
            "root_words": load.root_words,
            "turn_agents": load.turn_agents,
            "max_tokens": _BUSY_TOKENS,
            "replies": [asdict(reply) for reply in self.sidecar.replies],
        }


def engine_stats(engine: Server) -> dict[str, int]:
    """The counters of a `stream_engine`."""
    with urllib.request.urlopen(f"{engine.url}/bench/stats", timeout=30) as answer:
        counters: dict[str, int] = orjson.loads(answer.read())
        return counters


def start_engine(stack: ExitStack, name: str, scratch: Path, options: dict[str, Any]) -> Server:
    """A `stream_engine` with those options."""
    port, file = free_port(), scratch / f"{name}.json"
    file.write_bytes(orjson.dumps(options))
    arguments = [str(port), str(file)]
    return stack.enter_context(
        serving("benchmarks.stream_engine", arguments, port, scratch / f"{name}.log", "/model_info")
    )


def start_sidecar(
    stack: ExitStack, engine: Server, tokenizer: Path, scratch: Path, **settings: Any
) -> tuple[Server, Path]:
    """A watched sidecar and where its watch writes."""
    port, watch = free_port(), scratch / "sidecar.watch"
    given = {
        "engine_url": engine.url,
        "tokenizer": str(tokenizer),
        "listen": f"127.0.0.1:{port}",
        "control_listen": f"127.0.0.1:{free_port()}",
        "state_dir": str(scratch / "state"),
        **settings,
    }
    arguments = [str(watch), json.dumps(given)]
    log = scratch / "sidecar.log"
    return stack.enter_context(serving("benchmarks.watched_sidecar", arguments, port, log, "/v1/models")), watch


def start_site(stack: ExitStack, load: Load, tokenizer: Path, scratch: Path) -> Site:
    """Start everything; it ends with `stack`."""
    quiet = load.quiet_seconds
    lengths = load.tokens(quiet), load.tokens(quiet + load.busy_seconds + 2 * load.spare_seconds)
    short, long = (make_replies(tokenizer, _KINDS, tokens, calls=False) for tokens in lengths)
    options = {"rate": load.rate, "incremental": not load.cumulative, "context_length": CONTEXT_LENGTH}
    engine = start_engine(stack, "engine", scratch, {**options, "replies": to_wire(long)})
    other = start_engine(stack, "other-engine", scratch, {**options, "replies": to_wire(short)})
    gateway, watch = start_sidecar(stack, engine, tokenizer, scratch)
    port, through_watch = free_port(), scratch / "through.watch"
    arguments = [str(port), other.url.rpartition(":")[2], str(through_watch)]
    through = stack.enter_context(serving("benchmarks.pass_through", arguments, port, scratch / "through.log"))
    return Site(
        load,
        Side(load, long, engine, gateway, watch),
        Side(load, short, other, through, through_watch),
        scratch,
    )

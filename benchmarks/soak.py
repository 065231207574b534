"""Conversations for ten minutes, with a pause and new weights every twenty seconds: nothing lost, memory flat.

`python -m benchmarks.soak [--minutes 10] [--output DIR]` starts an engine that samples at a steady pace and the
sidecar, processes of their own. Agents in a further process hold conversation after conversation; each ends with a
finalize and a count of what its segments train. Meanwhile this process does what a trainer does: pause (mode
abort), rename the weights a second later, resume; and it samples the sidecar's memory every second. It stops by
itself.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.jobs import Job
from benchmarks.load import CONTEXT_LENGTH, engine_stats, start_engine, start_sidecar
from benchmarks.loop_watch import Stalls, watched
from benchmarks.machine import describe_machine
from benchmarks.policy import make_replies, to_wire
from benchmarks.processes import Server, free_port
from tests.support.npm import npm_tokenizer
from trainer_hooks.client import ControlClient

_TOKEN = "soak"  # the control plane's; both ends are this machine's loopback
_KINDS = 5
_SAMPLE_SECONDS = 1.0
_PAUSED_SECONDS = 1.0
_PAUSE_LIMIT = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds since the beginning, and the sidecar's resident bytes."""

    at: float
    resident: int


@dataclass(frozen=True, slots=True)
class Pause:
    """`took`: seconds until everything was quiet; `preempted` generations were aborted for it."""

    at: float
    took: float
    preempted: int
    quiesced: bool


class Trainer:
    """What a trainer does to a sidecar between its steps."""

    def __init__(self, control: ControlClient, engine: Server, begin: float) -> None:
        self._control, self._engine, self._begin = control, engine, begin
        self.pauses: list[Pause] = []

    def update_weights(self) -> None:
        """Pause, rename the weights, resume."""
        at = time.monotonic()
        paused = self._control.pause_rollout(mode="abort", timeout_seconds=_PAUSE_LIMIT)
        took = time.monotonic() - at
        self.pauses.append(Pause(at - self._begin, took, len(paused["preempted_request_ids"]), paused["quiesced"]))
        time.sleep(_PAUSED_SECONDS)
        body = orjson.dumps({"model_path": "policy", "weight_version": str(len(self.pauses) + 1)})
        request = urllib.request.Request(f"{self._engine.url}/update_weights_from_disk", body)
        with urllib.request.urlopen(request, timeout=30):
            pass
        self._control.resume_rollout(pause_id=paused["pause_id"])


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """How memory went on in the second half: megabytes per minute of a straight line through it, and by how many
    percent its last quarter is above the third."""
    second = samples[len(samples) // 2 :]
    half = len(second) // 2
    third, last = (statistics.fmean(one.resident for one in part) for part in (second[:half], second[half:]))
    slope = np.polyfit([one.at for one in second], [one.resident / 2**20 for one in second], 1)[0]
    return {"mb_per_minute": float(slope) * 60, "last_quarter_percent": (last / third - 1) * 100}


def soak(stack: ExitStack, arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Run it; all figures."""
    tokenizer = npm_tokenizer("qwen3")
    replies = make_replies(tokenizer, _KINDS, arguments.tokens, calls=True)
    options = {"rate": arguments.rate, "incremental": True, "context_length": CONTEXT_LENGTH}
    engine = start_engine(stack, "engine", scratch, {**options, "replies": to_wire(replies)})
    control_port = free_port()
    control_url = f"http://127.0.0.1:{control_port}"
    sidecar, watch = start_sidecar(
        stack, engine, tokenizer, scratch, control_listen=f"127.0.0.1:{control_port}", control_token=_TOKEN
    )
    seconds = arguments.minutes * 60
    plan = {
        "port": int(sidecar.url.rpartition(":")[2]),
        "control_url": control_url,
        "control_token": _TOKEN,
        "seconds": seconds,
        "agents": arguments.agents,
        "turns": arguments.turns,
        "result_words": arguments.result_words,
        "replies": [asdict(reply) for reply in replies],
    }
    control = stack.enter_context(ControlClient(control_url, _TOKEN))
    with Job("benchmarks.soak_agents", plan, scratch) as job:
        while not job.ended and not engine_stats(engine)["running"]:
            time.sleep(0.05)
        begin, cpu = time.monotonic(), sidecar.cpu_ns()
        trainer, samples, next_pause = Trainer(control, engine, begin), [], begin + arguments.pause_every
        while not job.ended:
            samples.append(Sample(time.monotonic() - begin, sidecar.resident_bytes()))
            if time.monotonic() >= next_pause and time.monotonic() - begin < seconds:
                trainer.update_weights()
                next_pause += arguments.pause_every
            time.sleep(_SAMPLE_SECONDS)
        agents = job.result()
    state = scratch / "state"
    return {
        "machine": describe_machine(),
        "load": {name: value for name, value in vars(arguments).items() if name != "output"},
        "seconds": time.monotonic() - begin,
        "cpu_share": (sidecar.cpu_ns() - cpu) / 1e9 / (time.monotonic() - begin),
        "agents": agents,
        "pauses": [asdict(pause) for pause in trainer.pauses],
        "samples": [asdict(sample) for sample in samples],
        "growth": growth(samples),
        "stalls": asdict(watched(watch, begin, time.monotonic())),
        "store_bytes": sum(file.stat().st_size for file in state.glob("tito.db*")),
        "left_behind": control.pause_state(),
    }


def print_table(console: Console, figures: dict[str, Any]) -> None:
    """What happened, in two columns."""
    agents, pauses, samples = figures["agents"], figures["pauses"], figures["samples"]
    stalls, grown = Stalls(**figures["stalls"]), figures["growth"]
    half = samples[len(samples) // 2 :]
    rows = [
        ("minutes", f"{figures['seconds'] / 60:.1f}"),
        ("conversations, turns", f"{agents['conversations']:,}, {agents['replies']:,}"),
        ("tokens that agents got / that train", f"{agents['tokens']:,} / {agents['trained_tokens']:,}"),
        ("errors", f"{len(agents['errors'])}"),
        ("pauses, of them quiet", f"{len(pauses)}, {sum(pause['quiesced'] for pause in pauses)}"),
        ("generations preempted", f"{sum(pause['preempted'] for pause in pauses):,}"),
        ("slowest pause", f"{max((pause['took'] for pause in pauses), default=0):.2f} s"),
        ("weight versions in one segment, at most", f"{agents['versions']}"),
        ("resident memory, begin / half / end", " / ".join(_mb(one) for one in (samples[0], half[0], samples[-1]))),
        (
            "second half",
            f"{grown['mb_per_minute']:+.2f} MB/min, last quarter {grown['last_quarter_percent']:+.1f} %",
        ),
        ("CPU of the sidecar", f"{figures['cpu_share']:.0%} of a core"),
        ("worst stall of its loop (of which it computed)", f"{stalls.worst_ms:.0f} ({stalls.own_ms:.0f}) ms"),
        ("store", f"{figures['store_bytes'] / 1e6:,.0f} MB"),
    ]
    table = Table(title=f"soak, {figures['load']['agents']} agents", show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)


def _mb(sample: dict[str, Any]) -> str:
    return f"{sample['resident'] / 2**20:.0f} MB"


def failures(figures: dict[str, Any]) -> list[str]:
    """What must not be: lost replies or tokens, pauses that never became quiet, calls left behind."""
    agents, left = figures["agents"], figures["left_behind"]
    found = list(agents["errors"])
    if agents["tokens"] != agents["trained_tokens"]:
        found.append(f"agents got {agents['tokens']} tokens, and {agents['trained_tokens']} train")
    found += [
        f"the pause at {pause['at']:.0f} s was not quiet" for pause in figures["pauses"] if not pause["quiesced"]
    ]
    if left["active"] or left["suspended"] or left["paused"]:
        found.append(f"left behind: {left}")
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").split("\n")[0])
    for name, default, text in (
        ("minutes", 10.0, "in which conversations begin"),
        ("pause-every", 20.0, "seconds"),
        ("agents", 64, "at once"),
        ("turns", 8, "of a conversation"),
        ("tokens", 80, "of a reply, about"),
        ("rate", 20.0, "tokens per second of each stream"),
        ("result-words", 120, "of a tool result, about one token each"),
    ):
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} [{default}]")
    parser.add_argument("--output", type=Path, default=Path("bench-output"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, soft_wrap=True, width=120)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures = soak(stack, arguments, scratch)
    console.print(figures["machine"])
    print_table(console, figures)
    (arguments.output / "soak.json").write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    from benchmarks.soak_plot import plot  # matplotlib takes a second to import

    plot(figures, arguments.output / "soak.png")
    console.print(f"written: {arguments.output}/soak.json, {arguments.output}/soak.png")
    found = failures(figures)
    if found:
        raise SystemExit("\n".join([f"{len(found)} failures, of which the first are:", *found[:5]]))


if __name__ == "__main__":
    main()

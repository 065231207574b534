"""What one turn of a long tool conversation costs the whole sidecar process, beside the floor of the work itself.

`python -m benchmarks.turn_cost [--turns 160] [--sessions 8] [--output DIR]` starts the stand-in engine,
`tito-sidecar serve` with its durable store and a bare pass-through, each a process of its own, holds conversations
side by side, and writes a table, a plot and the figures. CPU is the process's own clock: all threads, user and
system. The floor is timed in this process on the same bodies: parse the request, encode the new text, serialise all
`input_ids`.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.conversation import REPLY, Conversation
from benchmarks.machine import describe_machine
from benchmarks.processes import Server, free_port, serving
from tests.support.npm import npm_tokenizer

CONTEXT_LENGTH = 131_072
_WINDOW = 5
"""Turns around a reported turn whose median is given."""


@dataclass(frozen=True)
class Turn:
    """One turn. Times are CPU milliseconds; `tokens` is the prompt's length."""

    turn: int
    tokens: int
    request_bytes: int
    sidecar_ms: float
    floor_ms: float
    pass_through_ms: float


class Client:
    """Posts JSON bodies over one kept connection, as a blocking agent does."""

    def __init__(self, server: Server, path: str) -> None:
        self._connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
        self._path = path

    def post(self, body: bytes) -> Any:
        """The parsed reply. Raises `RuntimeError` for any status but 200."""
        try:
            response = self._send(body)
        except (http.client.RemoteDisconnected, ConnectionError):  # it was idle for too long
            self._connection.close()
            response = self._send(body)
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"{self._path}: {response.status} {data[:500]!r}")
        return orjson.loads(data)

    def _send(self, body: bytes) -> http.client.HTTPResponse:
        self._connection.request("POST", self._path, body, {"Content-Type": "application/json"})
        return self._connection.getresponse()


@dataclass(frozen=True)
class Servers:
    """The processes of one run."""

    sidecar: Server
    pass_through: Server


def start_servers(stack: ExitStack, tokenizer: Path, scratch: Path) -> Servers:
    """Start everything; it ends with `stack`."""
    engine_port, sidecar_port, through_port, upstream_port = (free_port() for _ in range(4))
    files = tokenizer / "tokenizer.json"
    stop = Tokenizer.from_file(str(files)).token_to_id("<|im_end|>")
    engine = [
        "--port", str(engine_port), "--tokenizer", str(files), "--model-path", "policy", "--reply", REPLY,
        "--eos-token-id", str(stop), "--context-length", str(CONTEXT_LENGTH), "--incremental",
    ]  # fmt: skip
    serve = [
        "serve", "--engine-url", f"http://127.0.0.1:{engine_port}", "--tokenizer", str(tokenizer),
        "--listen", f"127.0.0.1:{sidecar_port}", "--control-listen", f"127.0.0.1:{free_port()}",
        "--state-dir", str(scratch / "state"),
    ]  # fmt: skip
    stack.enter_context(serving("tests.fake_sglang", engine, engine_port, scratch / "engine.log", "/model_info"))
    upstream = ["--upstream", str(upstream_port)]
    stack.enter_context(serving("benchmarks.pass_through", upstream, upstream_port, scratch / "upstream.log"))
    through = [str(through_port), str(upstream_port)]
    return Servers(
        stack.enter_context(serving("sidecar.cli", serve, sidecar_port, scratch / "sidecar.log", "/v1/models")),
        stack.enter_context(serving("benchmarks.pass_through", through, through_port, scratch / "through.log")),
    )


def converse(servers: Servers, tokenizer: Path, turns: int, result_words: int, sessions: int) -> list[Turn]:
    """Hold `sessions` conversations at a time and cost each round of turns, per turn."""
    encode = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode
    agents = [Client(servers.sidecar, f"/sessions/bench-{n}/v1/chat/completions") for n in range(sessions)]
    bare = [Client(servers.pass_through, "/v1/chat/completions") for _ in range(sessions)]
    conversations = [Conversation(seed, result_words) for seed in range(sessions)]
    measured = []
    with ThreadPoolExecutor(sessions) as pool:
        for turn in range(1, turns + 1):
            bodies = [orjson.dumps(conversation.body()) for conversation in conversations]
            before = servers.sidecar.cpu_ns()
            replies = list(pool.map(Client.post, agents, bodies))
            sidecar_ms = (servers.sidecar.cpu_ns() - before) / 1e6 / sessions
            before = servers.pass_through.cpu_ns()
            list(pool.map(Client.post, bare, bodies))
            pass_through_ms = (servers.pass_through.cpu_ns() - before) / 1e6 / sessions
            tokens = statistics.mean(reply["usage"]["prompt_tokens"] for reply in replies)
            new = [conversation.messages[-1]["content"] for conversation in conversations]
            floor_ms = _floor_ms(bodies, new, list(range(int(tokens))), encode)
            size = int(statistics.mean(map(len, bodies)))
            measured.append(Turn(turn, int(tokens), size, sidecar_ms, floor_ms, pass_through_ms))
            for conversation, reply in zip(conversations, replies, strict=True):
                conversation.answer(reply["choices"][0]["message"])
    return measured


def _floor_ms(bodies: list[bytes], new_texts: list[str], input_ids: list[int], encode: Any) -> float:
    started = time.process_time_ns()
    for body, new_text in zip(bodies, new_texts, strict=True):
        orjson.loads(body)
        encode(new_text, add_special_tokens=False)
        orjson.dumps(input_ids)
    return (time.process_time_ns() - started) / 1e6 / len(bodies)


def memory_per_session(
    servers: Servers, tokenizer: Path, turns: int, result_words: int, sessions: int
) -> dict[str, float]:
    """Resident bytes that one more finished conversation adds, and what its tokens and messages come to.

    The first sessions warm the allocator and the caches and are not counted."""
    sizes, tokens, messages = [], 0, 0
    for seed in range(100, 100 + sessions):
        agent = Client(servers.sidecar, f"/sessions/memory-{seed}/v1/chat/completions")
        conversation = Conversation(seed, result_words)
        for _ in range(turns):
            reply = agent.post(orjson.dumps(conversation.body()))
            conversation.answer(reply["choices"][0]["message"])
        tokens = reply["usage"]["total_tokens"]
        messages = len(orjson.dumps(conversation.messages))
        sizes.append(servers.sidecar.resident_bytes())
    first = len(sizes) // 3
    added = (sizes[-1] - sizes[first]) / (len(sizes) - 1 - first)
    return {
        "resident_bytes_per_session": added,
        "tokens_per_session": tokens,
        "message_bytes_per_session": messages,
        "bytes_per_token_beside_messages": (added - messages) / tokens,
    }


def summarise(turns: Sequence[Turn]) -> list[Turn]:
    """Medians around turn 10, the last turn, and a few between."""
    marks = sorted({10, len(turns) // 4, len(turns) // 2, 3 * len(turns) // 4, len(turns) - _WINDOW // 2 - 1})
    return [_median(turns[max(0, mark - 1 - _WINDOW // 2) :][:_WINDOW], mark) for mark in marks if mark > 2]


def _median(window: Sequence[Turn], mark: int) -> Turn:
    def middle(name: str) -> float:
        return statistics.median(getattr(turn, name) for turn in window)

    return Turn(
        mark,
        int(middle("tokens")),
        int(middle("request_bytes")),
        middle("sidecar_ms"),
        middle("floor_ms"),
        middle("pass_through_ms"),
    )


def print_table(console: Console, rows: Sequence[Turn]) -> None:
    """CPU per turn, and its ratios."""
    table = Table(title="CPU per turn, whole process, durable store on (medians of five rounds)")
    for heading in ("turn", "tokens", "request KB", "sidecar ms", "floor ms", "ratio", "pass-through ms"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row.turn),
            f"{row.tokens:,}",
            f"{row.request_bytes / 1000:,.0f}",
            f"{row.sidecar_ms:.2f}",
            f"{row.floor_ms:.2f}",
            f"{row.sidecar_ms / row.floor_ms:.1f}x",
            f"{row.pass_through_ms:.2f}",
        )
    console.print(table)
    first, last = rows[0], rows[-1]
    console.print(
        f"growth from turn {first.turn} to turn {last.turn}: CPU {last.sidecar_ms / first.sidecar_ms:.1f}x, "
        f"request bytes {last.request_bytes / first.request_bytes:.1f}x"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.turn_cost", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--turns", type=int, default=160)
    parser.add_argument("--result-words", type=int, default=140, help="size of a tool result")
    parser.add_argument("--sessions", type=int, default=8, help="side by side; with 1 all code runs cold")
    parser.add_argument("--memory-sessions", type=int, default=9, help="0: leave memory out")
    parser.add_argument("--output", type=Path, default=Path("bench-output"))
    arguments = parser.parse_args()
    if arguments.turns < 20:
        parser.error(f"--turns is {arguments.turns}; 20 is the least that shows growth")
    console = Console(highlight=False, soft_wrap=True)
    tokenizer = npm_tokenizer("qwen3")
    arguments.output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = start_servers(stack, tokenizer, scratch)
        turns = converse(servers, tokenizer, arguments.turns, arguments.result_words, arguments.sessions)
        memory = {}
        if arguments.memory_sessions:
            memory = memory_per_session(
                servers, tokenizer, arguments.turns, arguments.result_words, arguments.memory_sessions
            )
    rows = summarise(turns)
    console.print(describe_machine())
    print_table(console, rows)
    if memory:
        console.print(
            f"memory: {memory['bytes_per_token_beside_messages']:.1f} bytes per token beside the messages "
            f"({memory['resident_bytes_per_session'] / 1e6:.2f} MB for {memory['tokens_per_session']:,} tokens and "
            f"{memory['message_bytes_per_session'] / 1e6:.2f} MB of messages)"
        )
    figures = {"machine": describe_machine(), "turns": [asdict(turn) for turn in turns], "memory": memory}
    (arguments.output / "turn_cost.json").write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    from benchmarks.turn_cost_plot import plot  # matplotlib takes a second to import

    plot(turns, arguments.output / "turn_cost.png")
    console.print(f"written: {arguments.output}/turn_cost.json, {arguments.output}/turn_cost.png")


if __name__ == "__main__":
    main()

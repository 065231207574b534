"""OpenAI Chat Completions: results to JSON bodies and stream chunks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from adapters.models.reply import Delta, Reply, ToolCall
from adapters.protocols.errors import RequestError


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts: the prompt once, the completions of all choices together."""

    prompt_tokens: int
    completion_tokens: int

    def to_json(self) -> dict[str, int]:
        """OpenAI's `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished reply. `logprobs` are `(text, logprob)` of the sampled tokens, or None if not asked for."""

    index: int
    reply: Reply
    finish_reason: str
    logprobs: Sequence[tuple[str, float]] | None


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of a stream repeats. `created` is in Unix seconds."""

    id: str
    model: str
    created: int

    def chunk(self, choices: list[dict[str, Any]], usage: Usage | None = None) -> dict[str, Any]:
        """One `chat.completion.chunk`."""
        body: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if usage is not None:
            body["usage"] = usage.to_json()
        return body

    def first_chunk(self, index: int) -> dict[str, Any]:
        """The chunk that opens choice `index`."""
        return self.chunk([_stream_choice(index, {"role": "assistant", "content": ""})])

    def delta_frame(self, index: int) -> tuple[bytes, bytes]:
        """What is before and after `delta_json` in an event of choice `index`: the same for all of its pieces."""
        before, delta, after = orjson.dumps(self.chunk([_stream_choice(index, {})])).rpartition(b'"delta":{}')
        return b"data: " + before + delta[:-2], after + b"\n\n"

    def last_chunk(
        self, index: int, finish_reason: str, logprobs: Sequence[tuple[str, float]] | None
    ) -> dict[str, Any]:
        """The chunk that completes choice `index`; agents act on it."""
        choice = _stream_choice(index, {}, finish_reason)
        if logprobs is not None:
            choice["logprobs"] = {"content": _logprob_entries(logprobs)}
        return self.chunk([choice])

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """The chunk without choices that `stream_options.include_usage` asks for."""
        return self.chunk([], usage)

    def completion(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The whole answer of a non-streaming call."""
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [_choice(choice) for choice in choices],
            "usage": usage.to_json(),
        }


def message(reply: Reply) -> dict[str, Any]:
    """The assistant message of a reply; `content` is null if there are calls and no text."""
    body: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        body["reasoning_content"] = reply.reasoning
    if reply.calls:
        body["content"] = reply.content or None
        body["tool_calls"] = [_call(call) for call in reply.calls]
    return body


def error_body(error: RequestError) -> dict[str, Any]:
    """OpenAI's error envelope."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def model_list(model_id: str, context_length: int | None, created: int) -> dict[str, Any]:
    """`GET /v1/models` with one entry."""
    return {"object": "list", "data": [model_entry(model_id, context_length, created)]}


def model_entry(model_id: str, context_length: int | None, created: int) -> dict[str, Any]:
    """`GET /v1/models/{id}`."""
    entry: dict[str, Any] = {"id": model_id, "object": "model", "created": created, "owned_by": "tito-sidecar"}
    if context_length is not None:
        entry["max_model_len"] = context_length
    return entry


def _stream_choice(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": None}


def delta_json(delta: Delta, call_index: int) -> bytes:
    """A piece of a choice; `call_index` is the ordinal of a tool call within its reply."""
    if delta.call is not None:
        return orjson.dumps({"tool_calls": [{"index": call_index, **_call(delta.call)}]})
    return orjson.dumps({"reasoning_content" if delta.kind == "reasoning" else "content": delta.text})


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _choice(choice: Choice) -> dict[str, Any]:
    body: dict[str, Any] = {
        "index": choice.index,
        "message": message(choice.reply),
        "finish_reason": choice.finish_reason,
        "logprobs": None,
    }
    if choice.logprobs is not None:
        body["logprobs"] = {"content": _logprob_entries(choice.logprobs)}
    return body


def _logprob_entries(logprobs: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in logprobs
    ]

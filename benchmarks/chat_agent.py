"""An agent of the load benchmarks: asks, and takes nothing but a whole reply. One event loop.

A reply is whole if it is one of those that the policy samples, part by part and with its number of tokens, and if
its stream has all that a stream has to have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from benchmarks.policy import Reply, parts
from benchmarks.raw_client import BrokenReply, HttpReply, RawClient, read_events

STREAMED = {"stream": True, "stream_options": {"include_usage": True}, "model": "policy"}


@dataclass(slots=True)
class Tally:
    """What all agents of a process saw together."""

    replies: int = 0
    events: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    longest_gap: float = 0.0

    def join(self, other: Tally) -> None:
        """Count what another one counted."""
        self.replies += other.replies
        self.events += other.events
        self.tokens += other.tokens
        self.prompt_tokens = max(self.prompt_tokens, other.prompt_tokens)
        self.longest_gap = max(self.longest_gap, other.longest_gap)

    def add(self, http: HttpReply, events: int, usage: dict[str, int]) -> None:
        """Count one whole reply."""
        self.replies += 1
        self.events += events
        self.tokens += usage["completion_tokens"]
        self.prompt_tokens = max(self.prompt_tokens, usage["prompt_tokens"])
        self.longest_gap = max(self.longest_gap, http.longest_gap)


class ChatAgent:
    """One agent of one session."""

    def __init__(
        self, host: str, port: int, session_id: str, replies: list[Reply], *, client: RawClient | None = None
    ) -> None:
        self._client = client or RawClient(host, port)
        self._path = f"/sessions/{session_id}/v1/chat/completions"
        self._expected = {(*parts(reply), len(reply.ids)) for reply in replies}

    def close(self) -> None:
        """Close its connection."""
        self._client.close()

    async def ask(self, body: dict[str, Any], tally: Tally, *, limited: bool = False) -> dict[str, Any]:
        """The whole reply, as the SDK gives it back. Raises `BrokenReply`, `OSError`.

        `limited`: `max_tokens` ends it, so that only its beginning is known."""
        http = await self._client.post(self._path, orjson.dumps({**body, **STREAMED}), {})
        events = read_events(http)
        message, finish, usage = assemble(events)
        seen = (message["reasoning_content"].strip(), message["content"].strip(), command_of(message))
        if finish == "length" and limited:
            if not any(_begins(seen[0], one[0]) and _begins(seen[1], one[1]) for one in self._expected):
                raise BrokenReply(f"the reply begins like none of the policy's: {seen}")
        elif (*seen, usage["completion_tokens"]) not in self._expected:
            raise BrokenReply(f"the reply ({finish}, {usage}) is none of the policy's: {seen}")
        tally.add(http, len(events), usage)
        return message


def _begins(seen: str, whole: str) -> bool:
    return whole.startswith(seen)


def command_of(message: dict[str, Any]) -> str | None:
    """The `command` of the only tool call; None without one."""
    if not message["tool_calls"]:
        return None
    (call,) = message["tool_calls"]
    return str(orjson.loads(call["function"]["arguments"])["command"])


def assemble(events: list[dict[str, Any]]) -> tuple[dict[str, Any], str, dict[str, int]]:
    """Message, finish reason and usage of a stream. Raises `BrokenReply` for one that lacks any."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    finish, usage = None, None
    for one in events:
        usage = one.get("usage") or usage
        for choice in one["choices"]:
            if finish is not None:
                raise BrokenReply(f"a delta after the finish reason: {choice}")
            delta, finish = choice["delta"], choice["finish_reason"]
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call in delta.get("tool_calls") or ():
                message["tool_calls"].append({key: call[key] for key in ("id", "type", "function")})
    if finish is None or usage is None:
        raise BrokenReply(f"a stream without {'a finish reason' if finish is None else 'usage'}")
    return message, finish, usage

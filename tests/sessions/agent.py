"""An agent with a history of its own, whose every turn is scripted on the engine's side."""

from __future__ import annotations

from typing import Any

import orjson

from tests.fake_sglang import FakeSGLang, RecordedRequest, Reply
from tests.support.chat import completion, user
from tests.support.running import Running


class Agent:
    """`forgets`: it replays no reasoning, as most clients. `fields` go into every request (`tools`, ...)."""

    def __init__(self, session: str = "s", *, forgets: bool = False, **fields: Any) -> None:
        self.session = session
        self.forgets = forgets
        self.fields = fields
        self.messages: list[dict[str, Any]] = []
        self.whole: list[dict[str, Any]] = []
        """The history with all reasoning in it."""
        self.step_ids: list[str] = []

    async def turn(self, running: Running, new: str | list[dict[str, Any]], said: Reply | str) -> RecordedRequest:
        """Send `new` (a user's text or messages) and get `said`; the request that the engine got for it."""
        following = [user(new)] if isinstance(new, str) else new
        self.messages += following
        self.whole += following
        reply = Reply(text=said) if isinstance(said, str) else said
        running.engine.replies.append(reply)
        body = {"model": "m", "messages": self.messages, **self.fields}
        response = await running.chat(self.session, body)
        answer = completion(response).choices[0].message.model_dump(exclude_none=True)
        self.step_ids.append(response.headers["x-step-id"])
        self.whole.append(answer)
        self.messages.append({k: v for k, v in answer.items() if not (self.forgets and k == "reasoning_content")})
        return running.engine.requests[-1]

    def results(self, *texts: str) -> list[dict[str, Any]]:
        """The results of the last reply's calls."""
        calls = self.messages[-1]["tool_calls"]
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call, text in zip(calls, texts, strict=True)
        ]


def for_template(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of the wire as transformers hands them to a template: arguments are objects, content is there."""
    told = []
    for message in messages:
        calls = [
            {
                "function": {
                    "name": call["function"]["name"],
                    "arguments": orjson.loads(call["function"]["arguments"]),
                }
            }
            for call in message.get("tool_calls") or ()
        ]
        with_calls = {"tool_calls": calls} if calls else {}
        told.append({**message, "content": message.get("content") or "", **with_calls})
    return told


def prompt_text(engine: FakeSGLang, request: RecordedRequest) -> str:
    """The prompt that the engine got, as text."""
    return engine.vocabulary.decode(request.input_ids, skip_special_tokens=False)


def trained(segment: dict[str, Any]) -> list[int]:
    """The ids that train in a segment."""
    return [t for t, m in zip(segment["tokens"], segment["full_loss_mask"], strict=True) if m]


def reasons(segments: list[dict[str, Any]]) -> list[str]:
    """Why each segment is one."""
    return [segment["extra_info"]["segment_reason"] for segment in segments]


def check_trained_once(segments: list[dict[str, Any]], requests: list[RecordedRequest]) -> None:
    """I4 and I3: all that was sampled trains in one segment, with the logprobs it was sampled with."""
    got = sorted(
        (token, logprob)
        for segment in segments
        for token, mask, logprob in zip(
            segment["tokens"], segment["full_loss_mask"], segment["full_logprobs"], strict=True
        )
        if mask
    )
    sampled = [pair for r in requests for pair in zip(r.output_ids, r.output_logprobs, strict=True)]
    assert [token for token, _ in got] == [token for token, _ in sorted(sampled)]
    for segment in segments:
        assert segment["full_loss_mask"].count(1) == segment["extra_info"]["output_token_count"]

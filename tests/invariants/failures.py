"""Calls that fail, as data: requests that are refused, and engines that break. Pure but for `Failure.happen`."""

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.fake_sglang import Fault, faults
from tests.invariants.agent import Agent
from tests.invariants.journal import Exchange
from tests.invariants.moves import Ask, plain_asks
from tests.invariants.world import CONTEXT_LENGTH

Body = dict[str, Any]


def _with(**fields: Any) -> Callable[[Body], bytes]:
    return lambda body: json.dumps({**body, **fields}).encode()


def _adding(*messages: Any) -> Callable[[Body], bytes]:
    return lambda body: json.dumps({**body, "messages": [*body["messages"], *messages]}).encode()


_CALL = {"id": "call_a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
_CALLING = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_BAD_CALL = {**_CALL, "function": {"name": "look", "arguments": {"at": 1}}}
_IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}

REFUSED: dict[str, Callable[[Body], bytes]] = {
    "no JSON": lambda body: json.dumps(body).encode()[:-1],
    "no object": lambda body: b"[1]",
    "lone surrogate": lambda body: b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "not UTF-8": lambda body: b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "no messages": _with(messages=[]),
    "text as messages": _with(messages="hello"),
    "number as role": _adding({"role": 5, "content": "x"}),
    "unknown role": _adding({"role": "wizard", "content": "x"}),
    "number as content": _adding({"role": "user", "content": 5}),
    "image": _adding({"role": "user", "content": [_IMAGE]}),
    "reply as last message": _adding({"role": "assistant", "content": "x"}),
    "result without a call": _adding({"role": "user", "content": "x"}, {"role": "tool", "content": "y"}),
    "result of another call": _adding(_CALLING, {"role": "tool", "tool_call_id": "call_b", "content": "y"}),
    "one result too many": _adding(_CALLING, *[{"role": "tool", "content": "y"}] * 2),
    "arguments as an object": _adding({**_CALLING, "tool_calls": [_BAD_CALL]}, {"role": "user", "content": "x"}),
    "input_ids": _with(input_ids=[1, 2]),
    "logprob_start_len": _with(logprob_start_len=0),
    "max_tokens 0": _with(max_tokens=0),
    "max_tokens as text": _with(max_tokens="many"),
    "n 0": _with(n=0),
    "temperature as text": _with(temperature="hot"),
    "tools as object": _with(tools={}),
    "tool without a name": _with(tools=[{"type": "function", "function": {}}]),
    "required tool": _with(tool_choice="required"),
    "stream as text": _with(stream="yes"),
    "empty stop": _with(stop=[""]),
    "messages for the template": _with(chat_template_kwargs={"messages": []}),
    "unknown format": _with(response_format={"type": "poem"}),
    "overflow": _adding({"role": "user", "content": "word " * CONTEXT_LENGTH}),
}
"""What is wrong with a request -> its bytes, made from a good body. All are 400."""

BROKEN: dict[str, tuple[Fault, int]] = {
    "500": (faults.HttpError(500), 503),
    "400": (faults.HttpError(400, {"error": {"message": "no"}}), 400),
    "HTML with 502": (faults.HtmlBody(502), 503),
    "HTML with 200": (faults.HtmlBody(200), 502),
    "error event": (faults.StreamError(after=0), 400),
    "late error event": (faults.StreamError(after=1), 400),
    "abort with an error": (faults.EngineAbort(after=1), 503),
    "a logprob too few": (faults.LogprobCount(-1), 502),
    "a logprob too many": (faults.LogprobCount(1), 502),
    "NaN": (faults.BadLogprob(), 502),
    "no logprob": (faults.BadLogprob(None), 502),
    "positive logprob": (faults.BadLogprob(0.5), 502),
    "wrong count": (faults.CompletionTokens(), 502),
    "garbage": (faults.GarbageChunk(after=1), 502),
    "503 and again": (faults.HttpError(503), 503),
    "dropped and again": (faults.DropConnection(), 503),
}
"""How the engine breaks -> its fault, and the status for the agent. "and again" outlasts the one retry."""

DOWN = "down"


@dataclass(frozen=True)
class Failure:
    """One call that fails; `retried`: the client's library repeats it, marked, when the engine is well again."""

    kind: str
    ask: Ask
    retried: bool

    @property
    def refused(self) -> bool:
        """The request itself is wrong."""
        return self.kind in REFUSED

    async def happen(self, agent: Agent) -> Exchange:
        """Make the call; what it was answered is in the exchange."""
        history = agent.head()
        async with AsyncExitStack() as stack:
            if self.refused:
                exchange = agent.prepare(self.ask, history)
                exchange.raw = REFUSED[self.kind](dict(exchange.body))
            elif self.kind == DOWN:
                exchange = agent.prepare(self.ask, history)
                await agent.world.engine.down()
                stack.push_async_callback(agent.world.engine.up)
            elif self.kind.endswith("and again"):
                exchange = agent.prepare(self.ask, history)
                agent.world.engine.fail_next(BROKEN[self.kind][0], times=2)
            else:
                exchange = agent.prepare(self.ask, history, faults=BROKEN[self.kind][0])
            await agent.send(exchange)
        return exchange

    def check(self, exchange: Exchange) -> None:
        """The agent was told in its own envelope: with a status, or with an event where headers had left."""
        answer = exchange.answer
        assert answer is not None and answer.error is not None, f"I8: {self.kind}: {answer}"
        assert not answer.complete, f"I8: {self.kind}: the failed call has a reply"
        assert answer.error["message"] and answer.error["type"], f"I8: {self.kind}: {answer.error}"
        status = 400 if self.refused else 503 if self.kind == DOWN else BROKEN[self.kind][1]
        allowed = {status, 200} if self.ask.stream and self.kind in BROKEN else {status}
        assert answer.status in allowed, f"I8: {self.kind} is answered with {answer.status}, not {status}"


failures = st.builds(
    Failure,
    kind=st.sampled_from([*REFUSED, *BROKEN, DOWN]),
    ask=plain_asks(),
    retried=st.booleans(),
)

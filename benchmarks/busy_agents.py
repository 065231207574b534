"""Agents that keep a sidecar busy beside its streams: `python -m benchmarks.busy_agents PLAN RESULT` (JSON files).

Some open session after session with a prompt of tens of thousands of tokens, every second one of them as one
message and the others as hundreds; some hold conversations of short turns, each of which the store has to write.
They begin no new call after `seconds`. One event loop.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.chat_agent import ChatAgent, Tally
from benchmarks.conversation import words
from benchmarks.policy import Reply
from benchmarks.raw_client import BrokenReply

_WORDS_PER_MESSAGE = 200
_SPREAD_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`root_words`: words of a large prompt, about one token each. `max_tokens` of each reply."""

    port: int
    seconds: float
    root_agents: int
    root_words: int
    turn_agents: int
    max_tokens: int
    replies: list[dict[str, Any]]


def large_prompt(source: random.Random, count: int, *, many: bool) -> list[dict[str, Any]]:
    """`count` words that no prompt before had, as one file or as a conversation."""
    if not many:
        return [{"role": "user", "content": words(source, count)}]
    pieces = [words(source, _WORDS_PER_MESSAGE) for _ in range(max(1, count // _WORDS_PER_MESSAGE))]
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": piece} for number, piece in enumerate(pieces)
    ]
    return [*messages, {"role": "user", "content": "go on"}]


async def run(plan: Plan) -> dict[str, Any]:
    """All agents; what they saw by kind, and errors."""
    replies = [Reply(**one) for one in plan.replies]
    until = asyncio.get_running_loop().time() + plan.seconds
    roots, turns, errors = Tally(), Tally(), []

    async def open_roots(number: int) -> None:
        source = random.Random(f"roots {number}")
        for root in _while_before(until):
            messages = large_prompt(source, plan.root_words, many=root % 2 == 1)
            with closing(ChatAgent("127.0.0.1", plan.port, f"root-{number}-{root}", replies)) as chat:
                await chat.ask({"messages": messages, "max_tokens": plan.max_tokens}, roots, limited=True)

    async def converse(number: int) -> None:
        messages: list[dict[str, Any]] = []
        with closing(ChatAgent("127.0.0.1", plan.port, f"turns-{number}", replies)) as chat:
            for turn in _while_before(until):
                messages.append({"role": "user", "content": f"go on, step {turn}"})
                reply = await chat.ask({"messages": messages, "max_tokens": plan.max_tokens}, turns, limited=True)
                messages.append({key: reply[key] for key in ("role", "content", "reasoning_content")})

    async def kept(agent: Callable[[int], Awaitable[None]], number: int, of: int) -> None:
        await asyncio.sleep(_SPREAD_SECONDS * number / of)
        try:
            await agent(number)
        except (BrokenReply, OSError) as error:
            errors.append(f"{agent.__name__} {number}: {error}")

    await asyncio.gather(
        *(kept(open_roots, number, plan.root_agents) for number in range(plan.root_agents)),
        *(kept(converse, number, plan.turn_agents) for number in range(plan.turn_agents)),
    )
    return {"roots": asdict(roots), "turns": asdict(turns), "errors": errors}


def _while_before(until: float) -> Iterator[int]:
    number, clock = 0, asyncio.get_running_loop().time
    while clock() < until:
        yield number
        number += 1


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    plan = Plan(**orjson.loads(Path(arguments[0]).read_bytes()))
    Path(arguments[1]).write_bytes(orjson.dumps(asyncio.run(run(plan))))


if __name__ == "__main__":
    main(sys.argv[1:])

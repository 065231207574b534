"""The agents of `soak` as a process: `python -m benchmarks.soak_agents PLAN RESULT` (files of JSON).

Each holds conversation after conversation: every turn a whole reply with a tool call, then its result. At its end
the session is finalized and its segments are read and counted. They begin no conversation after `seconds`. One
event loop.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.chat_agent import ChatAgent, Tally
from benchmarks.conversation import TOOLS, words
from benchmarks.policy import Reply
from benchmarks.raw_client import BrokenReply
from sidecar.serve import raise_file_limit
from trainer_hooks.client import AsyncControlClient
from trainer_hooks.control_errors import ControlError

_SPREAD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`turns` of a conversation; results have `result_words` words."""

    port: int
    control_url: str
    control_token: str
    seconds: float
    agents: int
    turns: int
    result_words: int
    replies: list[dict[str, Any]]


@dataclass(slots=True)
class Books:
    """What was trained of what the agents got: both have to be the same. `versions` sampled tokens were seen of."""

    conversations: int = 0
    trained_tokens: int = 0
    segments: int = 0
    versions: int = 0


class LostTokens(Exception):  # noqa: N818 - what the trainer sees
    """The segments of a session are not what its agent got."""


async def converse(plan: Plan, session_id: str, replies: list[Reply], tally: Tally) -> int:
    """One conversation; the tokens that its replies had."""
    source, mine = random.Random(session_id), Tally()
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{session_id}: find out why the test fails"}]
    with closing(ChatAgent("127.0.0.1", plan.port, session_id, replies)) as chat:
        for _ in range(plan.turns):
            reply = await chat.ask({"messages": messages, "tools": TOOLS}, mine)
            messages.append(reply)
            for call in reply["tool_calls"]:
                result = words(source, plan.result_words)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    tally.join(mine)
    return mine.tokens


async def settle(control: AsyncControlClient, session_id: str, tokens: int, books: Books) -> None:
    """Finalize and count. Raises `LostTokens`, `ControlError`."""
    await control.finalize_session(session_id, reward=1.0)
    read = await control.read_trajectory(session_id=session_id)
    masks = [segment["full_loss_mask"] for segment in read["data"]]
    trained = int(sum(map(sum, masks)))
    if trained != tokens:
        raise LostTokens(f"{session_id}: {trained} tokens train and its agent got {tokens}")
    for segment in read["data"]:
        lengths = {len(segment[name]) for name in ("tokens", "full_loss_mask", "full_logprobs", "full_versions")}
        if len(lengths) != 1:
            raise LostTokens(f"{session_id}: arrays of {lengths} entries")
        versions = {
            version
            for version, mask in zip(segment["full_versions"], segment["full_loss_mask"], strict=True)
            if mask
        }
        books.versions = max(books.versions, len(versions))
    books.conversations += 1
    books.segments += len(masks)
    books.trained_tokens += trained


async def run(plan: Plan) -> dict[str, Any]:
    """All agents; what they saw, what was trained, and errors."""
    replies = [Reply(**one) for one in plan.replies]
    clock = asyncio.get_running_loop().time
    until = clock() + plan.seconds
    tally, books, errors = Tally(), Books(), []
    control = AsyncControlClient(plan.control_url, plan.control_token)

    async def agent(number: int) -> None:
        await asyncio.sleep(min(_SPREAD_SECONDS, plan.seconds / 4) * number / plan.agents)
        conversation = 0
        while clock() < until:
            session_id = f"soak-{number}-{conversation}"
            try:
                tokens = await converse(plan, session_id, replies, tally)
                await settle(control, session_id, tokens, books)
            except (BrokenReply, LostTokens, ControlError, OSError) as error:
                errors.append(f"{session_id}: {type(error).__name__}: {error}")
            conversation += 1

    try:
        await asyncio.gather(*map(agent, range(plan.agents)))
    finally:
        await control.aclose()
    return {**asdict(tally), **asdict(books), "errors": errors}


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    raise_file_limit()
    plan = Plan(**orjson.loads(Path(arguments[0]).read_bytes()))
    Path(arguments[1]).write_bytes(orjson.dumps(asyncio.run(run(plan))))


if __name__ == "__main__":
    main(sys.argv[1:])

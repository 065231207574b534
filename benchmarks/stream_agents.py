"""The agents of `streams` as a process: `python -m benchmarks.stream_agents PLAN RESULT` (files of JSON).

Each agent of the plan makes one call and reads its stream to the end; `through` speaks to the pass-through, which
hands out the engine's own events. One event loop.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.chat_agent import ChatAgent, Tally
from benchmarks.policy import Reply
from benchmarks.raw_client import BrokenReply, RawClient, read_events
from sidecar.serve import raise_file_limit


@dataclass(frozen=True, slots=True)
class Plan:
    """`ramp`: seconds over which the agents arrive. `interval`: ids per event that the pass-through's agents ask
    for."""

    port: int
    agents: int
    ramp: float
    through: bool
    interval: int
    max_tokens: int
    replies: list[dict[str, Any]]


async def run(plan: Plan) -> dict[str, Any]:
    """All agents; what they saw, and the errors of those whose reply was not whole."""
    replies = [Reply(**one) for one in plan.replies]
    tally, errors = Tally(), []

    async def agent(number: int) -> None:
        await asyncio.sleep(plan.ramp * number / plan.agents)
        try:
            if plan.through:
                with closing(RawClient("127.0.0.1", plan.port)) as client:
                    await _ask_engine(client, plan, number, replies, tally)
            else:
                with closing(ChatAgent("127.0.0.1", plan.port, f"stream-{number}", replies)) as chat:
                    await chat.ask(_body(plan, number), tally)
        except (BrokenReply, OSError) as error:
            errors.append(f"agent {number}: {error}")

    await asyncio.gather(*map(agent, range(plan.agents)))
    return {**asdict(tally), "errors": errors}


def _body(plan: Plan, number: int) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": "You are a coding agent. Work step by step."},
        {"role": "user", "content": f"Task {number}: the parser drops escaped quotes. Say what you would look at."},
    ]
    return {"messages": messages, "max_tokens": plan.max_tokens}


async def _ask_engine(client: RawClient, plan: Plan, number: int, replies: list[Reply], tally: Tally) -> None:
    body = {
        "input_ids": list(range(number % 7, number % 7 + 60)),
        "sampling_params": {"max_new_tokens": plan.max_tokens, "stream_interval": plan.interval},
        "rid": f"through-{number:06}-",
        "stream": True,
        "return_logprob": True,
    }
    http = await client.post("/stream", orjson.dumps(body), {})
    events = read_events(http)
    ids: list[int] = []
    for one in events:
        cumulative = one["meta_info"]["completion_tokens"] == len(one["output_ids"])
        ids = one["output_ids"] if cumulative else ids + one["output_ids"]
    if ids not in [reply.ids for reply in replies] or events[-1]["meta_info"]["finish_reason"]["type"] != "stop":
        raise BrokenReply(f"{len(ids)} ids are no reply of the policy's")
    tally.add(http, len(events), events[-1]["meta_info"])


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    raise_file_limit()
    plan = Plan(**orjson.loads(Path(arguments[0]).read_bytes()))
    Path(arguments[1]).write_bytes(orjson.dumps(asyncio.run(run(plan))))


if __name__ == "__main__":
    main(sys.argv[1:])

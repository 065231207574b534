"""The agents of `intercept` as a process: `python -m benchmarks.intercept_agents PLAN RESULT` (files of JSON).

Each agent keeps one connection and makes its calls one after the other: whole turns, streams, or requests that the
gateway refuses. One event loop.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.chat_agent import ChatAgent, Tally
from benchmarks.policy import Reply
from benchmarks.raw_client import BrokenReply, RawClient
from sidecar.serve import raise_file_limit

HOST = "api.openai.com"


@dataclass(frozen=True, slots=True)
class Plan:
    """`trust`: the certificate to do TLS with, else plain HTTP. `kind`: `stream`, `turn` or `refused`. `name` makes
    sessions of different plans different. `ramp`: seconds over which the agents arrive."""

    port: int
    trust: str | None
    kind: str
    name: str
    agents: int
    calls: int
    ramp: float
    max_tokens: int
    replies: list[dict[str, Any]]


async def run(plan: Plan) -> dict[str, Any]:
    """All agents; what they saw, and the errors of those whose reply was not as it should be."""
    replies = [Reply(**one) for one in plan.replies]
    context = None if plan.trust is None else ssl.create_default_context(cafile=plan.trust)
    tally, errors = Tally(), []

    async def agent(number: int) -> None:
        await asyncio.sleep(plan.ramp * number / plan.agents)
        with closing(RawClient("127.0.0.1", plan.port)) as client:
            try:
                await _connect(client, plan.port, context)
                for call in range(plan.calls):
                    await _call(client, plan, f"{plan.name}-{number}-{call}", replies, tally)
            except (BrokenReply, OSError) as error:
                errors.append(f"agent {number}: {error}")

    await asyncio.gather(*map(agent, range(plan.agents)))
    return {**asdict(tally), "errors": errors}


async def _connect(client: RawClient, port: int, context: ssl.SSLContext | None) -> None:
    """Do TLS as for the provider's own host."""
    if context is not None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: client, "127.0.0.1", port, ssl=context, server_hostname=HOST)


async def _call(client: RawClient, plan: Plan, session: str, replies: list[Reply], tally: Tally) -> None:
    messages = [{"role": "user", "content": f"Task {session}: the parser drops escaped quotes. " + "Look. " * 100}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": plan.max_tokens}
    if plan.kind == "stream":
        await ChatAgent("127.0.0.1", plan.port, session, replies, client=client).ask(body, tally)
        return
    if plan.kind == "refused":
        body["temperature"] = "warm"
    http = await client.post(f"/sessions/{session}/v1/chat/completions", orjson.dumps(body), {})
    if http.status != (400 if plan.kind == "refused" else 200):
        raise BrokenReply(f"status {http.status}: {http.body[:200]!r}")
    tally.replies += 1


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    raise_file_limit()
    plan = Plan(**orjson.loads(Path(arguments[0]).read_bytes()))
    Path(arguments[1]).write_bytes(orjson.dumps(asyncio.run(run(plan))))


if __name__ == "__main__":
    main(sys.argv[1:])

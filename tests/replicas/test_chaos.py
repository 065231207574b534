"""Agents go on while the replicas that serve them are killed, stopped, woken and restarted at random.

`TITO_REPLICA_ROUNDS` says how many disturbances (none: skipped, since each starts a process), `TITO_REPLICA_SEED`
repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.fake_sglang import FakeSGLang, RecordedRequest, Reply
from tests.replicas.pair import LEASE, replica
from tests.replicas.process import Process, process
from tests.support.running import Running

ROUNDS = int(os.environ.get("TITO_REPLICA_ROUNDS", "0"))
SEED = int(os.environ.get("TITO_REPLICA_SEED", str(random.SystemRandom().randrange(10**6))))
AGENTS = 4
PATIENCE = 120.0


class EndlessReplies(deque[Reply]):
    """What the engine says: another text each time, slowly enough to be interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.said = 0

    def __bool__(self) -> bool:
        return True

    def popleft(self) -> Reply:
        self.said += 1
        return Reply(text=f"Reply {self.said} says 🎉 and more of it.", chunk_tokens=2, delay=0.02)


@dataclass
class Slot:
    """A replica's place: its state directory and address stay, its process does not."""

    state_dir: Path
    settings: dict[str, Any]
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    process: Process | None = None

    async def start(self, engine: FakeSGLang, store: str) -> None:
        self.stack = AsyncExitStack()
        self.process = await self.stack.enter_async_context(process(engine, self.state_dir, store, **self.settings))

    async def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.signal(number)
        await self.process.process.wait()
        await self.stack.aclose()


@dataclass
class Agent:
    """One that repeats a call as a client library does, at whichever replica."""

    session: str
    urls: list[str]
    dice: random.Random
    messages: list[dict[str, Any]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    """Step ids of the replies it has whole."""
    retries: int = 0

    async def run(self, client: httpx.AsyncClient, stop: asyncio.Event) -> None:
        while not stop.is_set() or len(self.acknowledged) < 2:
            self.messages.append({"role": "user", "content": f"Turn {len(self.acknowledged)}."})
            async with asyncio.timeout(PATIENCE):
                step_id, answer = await self._turn(client)
            self.acknowledged.append(step_id)
            self.messages.append({"role": "assistant", "content": answer})

    async def _turn(self, client: httpx.AsyncClient) -> tuple[str, str]:
        body = orjson.dumps({"model": "m", "messages": self.messages, "stream": self.dice.random() < 0.5})
        attempt = 0
        while True:
            url = f"{self.dice.choice(self.urls)}/sessions/{self.session}/v1/chat/completions"
            headers = {"content-type": "application/json", "x-stainless-retry-count": str(attempt)}
            try:
                response = await client.post(url, content=body, headers=headers)
                answer = _answer(response)
            except httpx.TransportError:
                answer = None
            if answer is not None:
                return response.headers["x-step-id"], answer
            attempt += 1
            self.retries += 1
            await asyncio.sleep(0.1)


def _answer(response: httpx.Response) -> str | None:
    """The whole reply; None for one that a library repeats."""
    if response.status_code in (409, 429) or response.status_code >= 500:
        assert response.headers.get("x-should-retry") != "false", response.text
        return None
    assert response.status_code == 200, response.text
    if not response.headers["content-type"].startswith("text/event-stream"):
        content: str = response.json()["choices"][0]["message"]["content"]
        return content
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return None
    deltas = [choice["delta"] for event in events[:-1] for choice in orjson.loads(event).get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)


async def disturb(slots: list[Slot], engine: FakeSGLang, store: str, dice: random.Random) -> None:
    """One replica at a time: the other one has to go on."""
    for _ in range(ROUNDS):
        await asyncio.sleep(dice.uniform(0.2, 1.0))
        slot = dice.choice(slots)
        assert slot.process is not None
        what = dice.choice(["kill", "end", "stop"])
        if what == "stop":
            slot.process.signal(signal.SIGSTOP)
            await asyncio.sleep(dice.uniform(0.1, 2.5 * LEASE))
            slot.process.signal(signal.SIGCONT)
        else:
            await slot.end(signal.SIGKILL if what == "kill" else signal.SIGTERM)
            await slot.start(engine, store)


def prompts_within(requests: list[RecordedRequest], tokens: list[int]) -> int:
    """How many different prompts the tokens begin with, bit for bit."""
    return sum(tokens[: len(ids)] == list(ids) for ids in {tuple(request.input_ids) for request in requests})


async def check(agent: Agent, engine: FakeSGLang, reader: Running) -> None:
    """I1, I4 and I5 of one session."""
    steps = {step["step_id"]: step for step in (await reader.view(agent.session))["steps"]}
    for step_id in agent.acknowledged:
        assert steps[step_id]["state"] == "committed", f"acknowledged step {step_id} is {steps.get(step_id)}"
    segments = await reader.segments(agent.session)
    last = segments[-1]
    assert prompts_within(engine.recorder.session(agent.session), last["tokens"]) >= len(agent.acknowledged)
    uids = [segment["uid"] for segment in segments]
    assert len(set(uids)) == len(uids)
    texts = engine.vocabulary.decode(last["tokens"], skip_special_tokens=True)
    for message in agent.messages:
        assert message["content"] in texts


@pytest.mark.skipif(ROUNDS == 0, reason="the long form: set TITO_REPLICA_ROUNDS")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_agents_go_on_exactly_whatever_becomes_of_their_replicas(
    engine: FakeSGLang, tmp_path: Path, store_url: str, request: pytest.FixtureRequest, database: str
) -> None:
    if database == "postgres":
        store_url = await request.getfixturevalue("postgres").new_url()
    print(f"TITO_REPLICA_SEED={SEED}")
    dice, stop = random.Random(SEED), asyncio.Event()
    engine.replies = EndlessReplies()
    engine.continue_aborted = False
    slots = [
        Slot(tmp_path / name, {"listen": f"127.0.0.1:{free_port()}", "control_listen": f"127.0.0.1:{free_port()}"})
        for name in "ab"
    ]
    await asyncio.gather(*(slot.start(engine, store_url) for slot in slots))
    try:
        urls = [slot.process.gateway for slot in slots if slot.process is not None]
        agents = [Agent(f"s{n}", urls, random.Random(f"{SEED} {n}")) for n in range(AGENTS)]
        async with httpx.AsyncClient(timeout=PATIENCE) as client, asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.run(client, stop))
            await disturb(slots, engine, store_url, dice)
            stop.set()
        for slot in slots:  # in order: that the last replies were delivered is stored a little later
            await slot.end(signal.SIGTERM)
    finally:
        for slot in slots:
            await slot.stack.aclose()
    engine.replies = deque()
    async with replica(engine, tmp_path / "reader", store_url) as reader:
        for agent in agents:
            await check(agent, engine, reader)
    print(
        f"turns {sum(len(agent.acknowledged) for agent in agents)}, retries {[agent.retries for agent in agents]}"
    )


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port

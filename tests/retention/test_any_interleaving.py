"""Whatever calls come while their session is unloaded again and again: every lineage is token-exact, and every
sampled token trains once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from tests.fake_sglang import Reply
from tests.retention.conftest import Sweeper
from tests.support.chat import ask, completion, follow
from tests.support.waiting import until

AGENTS, TURNS = 3, 8


async def agent(sweeper: Sweeper, name: str, chance: random.Random) -> None:
    """One lineage of the session: turns, some of them right after it was unloaded."""
    body = ask(f"I am {name}")
    for turn in range(TURNS):
        if turn and chance.random() < 0.5:
            await until(lambda: not sweeper.loaded, "a moment without the session in memory")
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
        response = await sweeper.running.chat("s", body)
        answer = completion(response).choices[0].message.model_dump(exclude_none=True)
        body = follow(body, answer, f"{name} {turn}")


@pytest.mark.parametrize("seed", range(3))
async def test_unloading_all_the_time_loses_nothing(sweeper: Sweeper, seed: int) -> None:
    chance, running = random.Random(seed), sweeper.running
    running.engine.replies.extend(Reply(text=f"Reply {number}.") for number in range(AGENTS * TURNS))
    agents = asyncio.gather(*(agent(sweeper, f"agent-{number}", chance) for number in range(AGENTS)))
    unloaded = 0
    while not agents.done():
        unloaded += await sweeper.registry.memory.unload_unused(0)
        await asyncio.sleep(0)
    await agents
    assert unloaded > 2
    running.engine.assert_i1(session="s", expected_roots=AGENTS)
    segments = await running.segments("s")
    assert len(segments) == AGENTS
    assert all(segment["extra_info"]["untrainable"] == [] for segment in segments)
    trained = Counter(
        token
        for segment in segments
        for token, one in zip(segment["tokens"], segment["full_loss_mask"], strict=True)
        if one
    )
    assert trained == Counter(token for request in running.engine.requests for token in request.output_ids)

"""Whatever interrupts a reply, in any order: each token's row is the router's own, and nothing is asked for twice
that was held."""

from __future__ import annotations

import random

import pytest

from tests.fake_sglang import Reply, faults
from tests.routing_replay.rows import ENGINE, SETTINGS, asked, assert_rows, reasons
from tests.support.chat import user
from tests.support.conversation import Conversation
from tests.support.running import Running

__all__ = ["ENGINE", "SETTINGS"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORDS = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
]


def interruption(rng: random.Random, after: int) -> faults.Fault:
    """An abort, which brings its rows, or a lost connection, which does not."""
    return rng.choice(
        [faults.EngineAbort(after, status_code=None, err_type=None), faults.DropConnection(after),
         faults.DropConnection(after, clean=True)]
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(15))
async def test_rows_are_exact_whatever_interrupts(shared: Running, seed: int) -> None:
    rng = random.Random(seed)
    engine, session = shared.engine, f"seed {seed}"
    talk = Conversation(shared, session)
    for turn in range(4):
        for _ in range(rng.randint(0, 3)):  # each strikes the next request, the continuations of this turn included
            engine.fail_next(interruption(rng, rng.randint(0, 2)))
        text = " ".join(rng.sample(WORDS, rng.randint(7, len(WORDS))))
        options = {"stop": [f" {text.split()[5]}"]} if rng.random() < 0.3 else {}
        chunk = rng.choice([1, 2, 5])
        await talk.say(user(f"turn {turn}"), reply=Reply(text=text, chunk_tokens=chunk), **options)
        if turn and rng.random() < 0.3:  # a branch
            del talk.messages[-2:]
    for segment in await talk.segments():
        assert_rows(segment)
        assert reasons(segment) == []
    for request in talk.requests:
        start = asked(request)
        assert start is not None and start <= max(0, len(request.input_ids) - 1)

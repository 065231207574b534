"""What the tests of this folder do with a sidecar and check of its segments, whichever engine is behind it."""

from __future__ import annotations

import asyncio
from itertools import zip_longest
from typing import Any

import httpx

from tests.engine.subject import TOLERANCE, Subject
from tests.engine.tap import Exchange
from tests.support.chat import ask
from tests.support.running import Running

Json = dict[str, Any]
STORY = "Write a long story about a dragon who lives in the mountains."
"""SmolLM2 goes on for hundreds of tokens; random weights hardly ever end."""


def story(tokens: int, **fields: Any) -> Json:
    """A body whose greedy reply has just that many tokens."""
    return ask(STORY, temperature=0, max_tokens=tokens, **fields)


async def begun(
    subject: Subject, running: Running, session: str, tokens: int, *, after: int = 4, stream: bool = False
) -> tuple[asyncio.Task[httpx.Response], Exchange]:
    """A story under way of which the engine has given `after` ids; the agent's call and the engine's."""
    call = asyncio.ensure_future(running.chat(session, story(tokens, stream=stream)))
    return call, await subject.tap.until_ids(session, after)


async def exact_segment(subject: Subject, running: Running, session: str, *, agent_left: bool = False) -> Json:
    """The session's one segment, which has to be what the engine was asked and what it gave, id by id.

    With `agent_left` the sidecar hung up on a call, and may have missed what was on the way to it then."""
    [segment] = await running.segments(session)
    calls = subject.tap.generations(session)
    tokens, mask = segment["tokens"], segment["full_loss_mask"]
    last = calls[-1]
    assert tokens == last.input_ids + last.output_ids
    given: list[tuple[int, float]] = []
    for call, following in zip_longest(calls, calls[1:]):
        start, pairs = len(call.input_ids), call.pairs
        if agent_left and following is not None:
            pairs = pairs[: len(following.input_ids) - start]
        end = start + len(pairs)
        assert call.input_ids == tokens[:start]
        assert [index for index, _ in pairs] == tokens[start:end]
        assert mask[start:end] == [1] * len(pairs)
        given += pairs
    trained = [
        pair for pair, one in zip(zip(tokens, segment["full_logprobs"], strict=True), mask, strict=True) if one
    ]
    assert trained == given
    return dict(segment)


async def assert_scored(subject: Subject, segment: Json, version: str | None = None) -> int:
    """A direct `/generate` of the segment's ids reads the same ids and gives their logprobs, within `TOLERANCE`.

    Only of ids that `version` sampled, if one is named, whose weights have to be loaded. How many were compared."""
    scores = [None, *await subject.score(segment["tokens"])]
    columns = (scores, segment["full_logprobs"], segment["full_loss_mask"], segment["full_versions"])
    pairs = [
        (score, held)
        for score, held, one, stamp in zip(*columns, strict=True)
        if one and version in (None, stamp) and score is not None
    ]
    worst = max((abs(score - held) for score, held in pairs), default=0.0)
    assert worst <= TOLERANCE, f"logprobs differ by up to {worst}"
    return len(pairs)

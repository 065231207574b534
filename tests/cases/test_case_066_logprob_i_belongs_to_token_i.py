"""Case 66 (PrimeIntellect-ai/prime-rl PR 1525): logprobs were shifted by one between trainer and inference.

Our convention, as a golden test: in a segment, entry i of `full_logprobs` (and mask, and versions) belongs to entry
i of `tokens`; context has 0.0. Input: two turns whose every token has a logprob of its own.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_every_sampled_token_carries_its_own_logprob(shared: Running) -> None:
    engine = shared.engine
    texts = ["alpha beta gamma", "delta epsilon"]
    sampled: list[tuple[int, float]] = []
    body = ask()
    for turn, text in enumerate(texts):
        ids = engine.vocabulary.encode(text)
        logprobs = [-(turn + 1) - position / 64 for position in range(len(ids) + 1)]
        engine.replies.append(Reply(text=text, logprobs=logprobs))
        answer = completion(await shared.chat("case-66", body)).choices[0].message.model_dump(exclude_none=True)
        body = follow(body, answer, "More")
        sampled += zip([*ids, engine.vocabulary.eos_token_ids[0]], logprobs, strict=True)
    [segment] = await shared.segments("case-66")
    rows = list(zip(segment["tokens"], segment["full_logprobs"], segment["full_loss_mask"], strict=True))
    assert [(token, logprob) for token, logprob, mask in rows if mask] == sampled
    assert all(logprob == 0.0 for _, logprob, mask in rows if not mask)
    last = engine.requests[-1]
    assert [token for token, _, _ in rows] == last.input_ids + last.output_ids

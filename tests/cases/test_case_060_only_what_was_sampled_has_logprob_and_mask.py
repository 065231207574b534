"""Case 60 (allenai/open-instruct PR 1041, SkyRL PR 758 and 2148): an end-of-turn id that the framework added had
logprob 0.0 and mask 1, so that the sequence's probability ratio was wrong by its probability.

Input: a reply that ends at a stop string (its close is added), and one that ends with a sampled stop id.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_close_after_a_stop_string_is_context(shared: Running) -> None:
    engine = shared.engine
    engine.replies.extend([Reply(text="alpha END beta", chunk_tokens=1), Reply(text="Done.")])
    body = ask(stop=["END"])
    answer = completion(await shared.chat("case-60-stop", body)).choices[0].message.model_dump(exclude_none=True)
    completion(await shared.chat("case-60-stop", follow(ask(), answer, "More")))
    first, second = engine.requests
    [segment] = await shared.segments("case-60-stop")
    close = len(first.input_ids) + len(first.output_ids)
    assert segment["tokens"][close] == engine.vocabulary.eos_token_ids[0]
    assert (segment["full_loss_mask"][close], segment["full_logprobs"][close]) == (0, 0.0)
    assert segment["full_versions"][close] == "-1"
    assert segment["tokens"] == second.input_ids + second.output_ids


async def test_a_sampled_stop_id_keeps_its_logprob_and_trains(shared: Running) -> None:
    engine = shared.engine
    engine.replies.append(Reply(text="alpha", logprobs=[-0.5, -4.5]))
    completion(await shared.chat("case-60-sampled", ask()))
    [request] = engine.requests
    assert len(request.output_ids) == 2
    [segment] = await shared.segments("case-60-sampled")
    assert segment["tokens"][-1] == engine.vocabulary.eos_token_ids[0]
    assert (segment["full_loss_mask"][-1], segment["full_logprobs"][-1]) == (1, -4.5)

"""Case 76: two identical bodies are one turn with `x-stainless-retry-count`, and two turns without it.

Compaction may send an identical body on purpose, so the body alone proves nothing.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(("headers", "turns"), [({"x_stainless_retry_count": "1"}, 1), ({}, 2)])
async def test_the_header_decides(shared: Running, headers: dict[str, str], turns: int) -> None:
    session = f"case-76-{turns}"
    shared.engine.replies.extend([Reply(text="One."), Reply(text="Two.")])
    first = completion(await shared.chat(session, ask()))
    second = completion(await shared.chat(session, ask(), **headers))
    assert len(shared.engine.requests) == turns
    assert len((await shared.view(session))["steps"]) == turns
    assert (first.id == second.id) == (turns == 1)
    assert (await shared.finalize(session))["num_steps"] == turns
    trained = sum(sum(segment["full_loss_mask"]) for segment in await shared.segments(session))
    assert trained == sum(len(request.output_ids) for request in shared.engine.requests)

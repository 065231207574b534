"""Case 99: `n=2` is two sibling steps, each trained once; an agent goes on with the one it took."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("taken", [0, 1])
async def test_both_are_recorded_and_the_taken_one_is_continued_exactly(shared: Running, taken: int) -> None:
    session = f"case-99-{taken}"
    shared.engine.replies.extend([Reply(text="Red."), Reply(text="A longer green."), Reply(text="Fine.")])
    body = ask()
    both = completion(await shared.chat(session, {**body, "n": 2}))
    answer = both.choices[taken].message.model_dump(exclude_none=True)
    completion(await shared.chat(session, follow(body, answer, "Why?")))

    *siblings, last = shared.engine.requests
    by_text = {shared.engine.vocabulary.decode(one.output_ids, skip_special_tokens=True): one for one in siblings}
    parent = by_text[answer["content"]]
    shared.engine.recorder.assert_token_exact([parent, last])
    [other] = [one for one in siblings if one is not parent]
    assert other.input_ids == parent.input_ids

    segments = await shared.segments(session)
    assert [trained(segment) for segment in segments] == [
        other.output_ids,
        [*parent.output_ids, *last.output_ids],
    ]
    assert all(not segment["extra_info"]["untrainable"] for segment in segments)


def trained(segment: dict[str, Any]) -> list[int]:
    return [token for token, mask in zip(segment["tokens"], segment["full_loss_mask"], strict=True) if mask]


@pytest.mark.parametrize("n", [0, -1, 129, 1.5, "2", True])
async def test_a_number_of_choices_that_makes_no_sense_is_refused(shared: Running, n: Any) -> None:
    response = await shared.chat("case-99-refused", ask(n=n))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"

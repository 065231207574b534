"""Case 98: a client that sets `input_ids`, `logprob_start_len` and the like would break token in, token out.

`logprobs` is another matter here: the engine always gives them, so the agent may have them, too.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("field", "value"), [("input_ids", [1, 2]), ("logprob_start_len", 0), ("rid", "x"), ("ignore_eos", True)]
)
async def test_the_field_is_named_and_the_session_unchanged(shared: Running, field: str, value: object) -> None:
    session = f"case-98-{field}"
    shared.engine.replies.append(Reply(text="Hello."))
    body = ask()
    answer = completion(await shared.chat(session, body)).choices[0].message.model_dump(exclude_none=True)
    before = await shared.view(session)
    second = follow(body, answer, "More")
    response = await shared.chat(session, {**second, field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert "token exactness" in response.json()["error"]["message"]
    assert await shared.view(session) == before
    assert len(shared.engine.requests) == 1
    completion(await shared.chat(session, second))
    shared.engine.assert_i1(session=session)


async def test_logprobs_do_not_change_what_the_engine_is_asked_or_what_is_recorded(shared: Running) -> None:
    for session, fields in (("case-98-with", {"logprobs": True, "top_logprobs": 0}), ("case-98-without", {})):
        shared.engine.replies.append(Reply(text="Hello."))
        got = completion(await shared.chat(session, ask(**fields)))
        assert (got.choices[0].logprobs is not None) == bool(fields)
    asked = [{**request.body, "rid": None} for request in shared.engine.requests]
    assert asked[0] == asked[1]
    assert "logprob_start_len" not in asked[0]
    assert asked[0]["return_logprob"] is True
    segments = [(await shared.segments(session))[0] for session in ("case-98-with", "case-98-without")]
    assert segments[0]["tokens"] == segments[1]["tokens"]
    assert segments[0]["full_logprobs"] == segments[1]["full_logprobs"]

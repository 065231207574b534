"""Case 56 (ollama issue 13497, standardcompletions/rfcs issue 2): logprob entries of ids that are parts of a
character show U+FFFD. So ids are what counts; the text of one id may be wrong.

Input: an emoji that is split over several ids, streamed id by id, with logprobs.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow, joined, payloads
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "so 🫠🏴‍☠️ ok"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_ids_are_kept_and_text_never_holds_half_a_character(shared: Running, stream: bool) -> None:
    session, engine = f"case-56-{stream}", shared.engine
    engine.replies.append(Reply(text=TEXT, chunk_tokens=1))
    body = ask(logprobs=True, stream=stream)
    response = await shared.chat(session, body)
    [request] = engine.requests
    pieces = [engine.vocabulary.decode([one], skip_special_tokens=True) for one in request.output_ids]
    assert any("�" in piece for piece in pieces), "no character is split over ids: the case is not met"
    if stream:
        chunks = payloads(response.text)
        assert joined(chunks) == TEXT
        assert "�" not in "".join(joined([chunk]) for chunk in chunks)
        entries = chunks[-2]["choices"][0]["logprobs"]["content"]
    else:
        whole = completion(response).choices[0]
        assert whole.message.content == TEXT
        entries = response.json()["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == request.output_logprobs
    answer = {"role": "assistant", "content": TEXT}
    completion(await shared.chat(session, follow(ask(), answer, "More")))
    engine.assert_i1(session=session)

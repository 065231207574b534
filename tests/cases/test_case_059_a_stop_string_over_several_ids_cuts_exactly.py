"""Case 59 (mzau/mlx-knife issue 68): a stop string over two ids was not seen in a stream, or the chunk that
completes it had gone out already.

Input: `stop: ["beta gamma"]`, streamed in pieces of every size, with an engine that does not look for it, too.
"""

from __future__ import annotations

import pytest

from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow, joined, payloads
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "alpha beta  beta gamma delta"
STOP = "beta gamma"
SEEN = "alpha beta  "


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_nothing_of_it_is_shown_and_ids_end_with_the_one_that_completes_it(
    shared: Running, chunk: int, stream: bool
) -> None:
    session, engine = f"case-59-{chunk}-{stream}", shared.engine
    engine.replies.append(Reply(text=TEXT, chunk_tokens=chunk))
    response = await shared.chat(session, ask(stop=[STOP], stream=stream))
    if stream:
        chunks = payloads(response.text)
        shown = [joined([one]) for one in chunks]
        text, reason = joined(chunks), chunks[-2]["choices"][0]["finish_reason"]
        assert all(SEEN.startswith("".join(shown[:n])) for n in range(len(shown)))
    else:
        choice = completion(response).choices[0]
        text, reason = choice.message.content or "", choice.finish_reason
    assert (text.rstrip(), reason) == (SEEN.rstrip(), "stop")
    assert SEEN.startswith(text)
    [step] = (await shared.view(session))["steps"]
    ids = engine.vocabulary.encode(TEXT)
    kept = ids[: step["output_tokens"]]
    assert STOP in engine.vocabulary.decode(kept, skip_special_tokens=True)
    assert STOP not in engine.vocabulary.decode(kept[:-1], skip_special_tokens=True)
    completion(await shared.chat(session, follow(ask(), {"role": "assistant", "content": text}, "More")))
    second = engine.requests[-1]
    prompt = engine.requests[0].input_ids
    assert second.input_ids[: len(prompt) + len(kept)] == prompt + kept

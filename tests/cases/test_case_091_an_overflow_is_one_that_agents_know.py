"""Case 91 (opencode issue 25231, openclaw issue 129352 and others): SGLang's own words for a prompt that does not
fit are not recognised, so agents do not compact their history.

Input: a prompt beyond the window, a prompt and `max_tokens` beyond it, and all of SGLang's wordings, as an HTTP
error and inside a stream that began with 200.
"""

from __future__ import annotations

import openai
import pytest

from tests.fake_sglang import Fault, Reply, faults
from tests.support.chat import ask, completion
from tests.support.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")
ENGINE = {"context_length": 300}
WORDINGS = [
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested 5000.",
    "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens). Use a shorter input.",
]
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def refused(running: Running, session: str, text: str, stream: bool) -> openai.BadRequestError:
    async with running.agent(session) as agent:
        with pytest.raises(openai.BadRequestError) as raised:
            await agent.chat.completions.create(**ask(text), stream=stream)
    return raised.value


def check(error: openai.BadRequestError) -> None:
    """As OpenAI says it."""
    assert (error.status_code, error.type, error.code) == (400, "invalid_request_error", "context_length_exceeded")
    assert "maximum context length" in error.message


@BOTH_WAYS
async def test_a_prompt_beyond_the_window_is_refused_in_openais_words(shared: Running, stream: bool) -> None:
    error = await refused(shared, "case-91", "many words " * 200, stream)
    check(error)
    assert "This model's maximum context length is 300 tokens. However, your messages" in error.message
    assert not shared.engine.requests


@BOTH_WAYS
@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("inside", [False, True], ids=["http error", "inside a stream"])
async def test_the_engines_own_words_are_translated(
    shared: Running, wording: str, inside: bool, stream: bool
) -> None:
    fault: Fault = faults.HttpError(400, {"error": {"message": wording}})
    if inside:
        fault = faults.StreamError(0, wording, 400)
    shared.engine.fail_next(fault)
    check(await refused(shared, "case-91-words", "Hi", stream))
    shared.engine.replies.clear()


async def test_a_limit_beyond_the_window_is_clamped_and_fits(shared: Running) -> None:
    shared.engine.replies.append(Reply(text="ok"))
    response = await shared.chat("case-91-clamped", ask(max_tokens=100_000))
    assert completion(response).choices[0].message.content == "ok"
    [request] = shared.engine.requests
    assert int(response.headers["x-tito-max-tokens"]) + len(request.input_ids) == 300

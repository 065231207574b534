"""SmolLM2, a model that can talk: its words, the end that it finds by itself, and a pause in the middle of them."""

from __future__ import annotations

import pytest

from tests.engine.steps import assert_scored, exact_segment, story
from tests.engine.subject import Subject, parameters
from tests.support.chat import ask, completion, joined, streaming, text_of, user
from tests.support.rollout import sampled_versions
from tests.support.running import Running

pytestmark = pytest.mark.parametrize("served", parameters("smollm2"), indirect=True)


async def test_it_answers_stops_by_itself_and_goes_on_from_its_own_ids(subject: Subject, running: Running) -> None:
    body = ask("What is the capital of France? Answer with one word.", temperature=0, max_tokens=40)
    answer = completion(await running.chat("s", body)).choices[0]
    if subject.real:
        assert "Paris" in (answer.message.content or "")
        assert answer.finish_reason == "stop"
        assert subject.tap.generations("s")[0].output_ids[-1] in running.sidecar.model.stop_ids
    said = answer.message.model_dump(exclude_none=True)
    await running.chat("s", {**body, "messages": [*body["messages"], said, user("Thanks.")], "max_tokens": 6})
    segment = await exact_segment(subject, running, "s")
    assert len(subject.tap.generations("s")) == 2
    assert await assert_scored(subject, segment) == sum(segment["full_loss_mask"])


async def test_a_pause_in_the_middle_changes_no_word(subject: Subject, running: Running) -> None:
    straight = text_of(await running.chat("straight", story(28)))
    async with streaming(running, "s", story(28)) as agent:
        await subject.tap.until_ids("s", 5)
        paused = await running.post("/v1/rollout/pause")
        assert paused["quiesced"]
        await subject.until_idle()
        await subject.update_weights(subject.second, "2")
        await running.post("/v1/rollout/resume")
        chunks = await agent.rest()
    text = joined(chunks)
    segment = await exact_segment(subject, running, "s")
    assert set(sampled_versions(segment)) == {"1", "2"}
    assert await assert_scored(subject, segment) == 28
    if subject.real:  # the same weights under another name; the stand-in draws anew
        assert text == straight

"""Whoever ends a generation before the model does, it goes on from the ids it has; nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fake_sglang import faults
from tests.generation.driver import PROMPT, TEXT, Driver, driving

# What is sent.


async def test_a_request_is_ids_with_logprobs_streamed_under_a_fresh_rid(driver: Driver) -> None:
    expected = driver.says()
    generation = await driver.run(driver.generation(temperature=0.5))
    [request] = driver.requests
    assert request.body == {
        "input_ids": list(PROMPT),
        "sampling_params": {
            "temperature": 0.5,
            "max_new_tokens": 100,
            "stop_token_ids": sorted(driver.model.stop_ids),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
            "stream_interval": 8,
        },
        "rid": request.rid,
        "return_logprob": True,
        "stream": True,
    }
    assert re.fullmatch("[0-9a-f]{32}", request.rid)
    assert request.session == "s"
    driver.assert_pieces(generation, expected)
    assert generation.finish is not None
    assert (generation.finish.kind, generation.finish.matched) == ("stop", expected[-1])


@pytest.mark.parametrize(
    ("incremental", "streaming", "budget", "interval"),
    [
        (True, True, 8192, 1),
        (True, False, 8192, 8),
        (False, True, 8192, 128),
        (False, False, 8192, 512),
        (None, True, 8192, 128),
        (False, True, 100, 8),
        (False, False, 100, 8),
    ],
)
async def test_a_cumulative_stream_is_asked_for_few_chunks(
    driver: Driver, incremental: bool | None, streaming: bool, budget: int, interval: int
) -> None:
    driver.controller.incremental = incremental
    driver.says()
    await driver.run(driver.generation(budget, streaming=streaming))
    assert driver.requests[0].sampling_params["stream_interval"] == interval


async def test_all_shapes_of_stream_give_the_same_ids_and_logprobs(any_driver: Driver) -> None:
    for text in (TEXT, "", "🎉 é", "a"):
        any_driver.engine.reset()
        expected = any_driver.says(text)
        any_driver.assert_pieces(await any_driver.run(), expected)


async def test_a_reply_ends_where_its_budget_does(any_driver: Driver) -> None:
    expected = any_driver.says()
    generation = await any_driver.run(any_driver.generation(4))
    assert generation.output_ids == expected[:4]
    assert generation.finish is not None
    assert generation.finish.kind == "length"


# Preempted, by whoever.


async def test_a_stranger_s_abort_is_a_preemption(any_driver: Driver) -> None:
    hold = asyncio.Event()
    expected = any_driver.says(hold=hold, hold_after=3)
    running = any_driver.start()
    first = await any_driver.at_hold()
    any_driver.abort_all()
    any_driver.assert_pieces(await running, expected)
    _, second = any_driver.requests
    assert second.rid != first.rid
    assert second.sampling_params["max_new_tokens"] == 97


async def test_many_preemptions_in_one_reply_lose_and_double_nothing(any_driver: Driver) -> None:
    expected = any_driver.says("word " * 30, delay=0.005)
    running = any_driver.start()
    for count in range(1, 6):
        await any_driver.engine.wait_until(
            lambda count=count: len(any_driver.requests) == count and any_driver.requests[-1].output_ids
        )
        any_driver.abort_all()
        await any_driver.engine.wait_until(lambda count=count: any_driver.requests[count - 1].done)
    any_driver.assert_pieces(await running, expected)
    assert (await running).preemptions == len(any_driver.requests) - 1 == 5


async def test_an_abort_from_the_waiting_queue_brings_no_ids_and_is_sent_again(any_driver: Driver) -> None:
    expected = any_driver.says(queue=asyncio.Event())
    running = any_driver.start()
    [first] = await any_driver.engine.wait_requests(1)
    await any_driver.in_queue()
    any_driver.abort_all()
    any_driver.assert_pieces(await running, expected)
    assert first.finish_reason == {"type": "abort", "message": "Abort in waiting queue"}


async def test_a_retracted_call_that_is_aborted_in_the_queue_repeats_no_id(any_driver: Driver) -> None:
    """In an incremental stream SGLang 0.5.23 then sends the last id once more."""
    expected = any_driver.says(hold=asyncio.Event(), hold_after=3)
    running = any_driver.start()
    await any_driver.at_hold()
    await any_driver.engine.state.pause("retract")
    any_driver.abort_all()
    await any_driver.engine.wait_requests(2)
    await any_driver.engine.state.resume()
    any_driver.assert_pieces(await running, expected)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("after", [0, 1, 4])
async def test_a_lost_connection_continues_from_the_ids_known(any_driver: Driver, after: int, clean: bool) -> None:
    expected = any_driver.says(faults=faults.DropConnection(after, clean=clean))
    any_driver.assert_pieces(await any_driver.run(), expected)
    assert len(any_driver.requests) == 2


async def test_an_engine_that_restarts_costs_a_call_nothing_but_time(any_driver: Driver) -> None:
    hold = asyncio.Event()
    expected = any_driver.says(hold=hold, hold_after=3)
    running = any_driver.start()
    await any_driver.at_hold()
    await any_driver.engine.down()
    await any_driver.engine.up()
    any_driver.assert_pieces(await running, expected)


async def test_a_reply_that_ended_in_its_stop_id_when_the_abort_came_is_not_sent_again(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, abort_overrun=1) as driver:
        expected = driver.says("ab", hold=asyncio.Event(), hold_after=1)
        running = driver.start()
        await driver.at_hold(after=1)
        driver.abort_all()
        generation = await running
        [request] = driver.requests
        assert request.outcome == "aborted"
        assert generation.output_ids == request.output_ids == expected
        assert generation.finish is not None
        assert (generation.finish.kind, generation.finish.matched) == ("stop", expected[-1])


async def test_a_reply_whose_budget_was_used_up_when_the_abort_came_is_not_sent_again(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, abort_overrun=1) as driver:
        expected = driver.says(hold=asyncio.Event(), hold_after=3)
        running = driver.start(driver.generation(4))
        await driver.at_hold()
        driver.abort_all()
        generation = await running
        assert len(driver.requests) == 1
        assert generation.output_ids == expected[:4]
        assert generation.finish is not None
        assert generation.finish.kind == "length"


async def test_a_complete_reply_that_cannot_go_on_from_ids_is_not_started_over(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, abort_overrun=1) as driver:
        expected = driver.says("ab", hold=asyncio.Event(), hold_after=1)
        running = driver.start(driver.generation(repetition_penalty=1.1))
        await driver.at_hold(after=1)
        driver.abort_all()
        assert (await running).output_ids == expected
        assert len(driver.requests) == 1
        assert not driver.fresh


async def test_a_natural_end_beats_an_abort_that_was_asked_for(driver: Driver) -> None:
    hold = asyncio.Event()
    expected = driver.says(hold=hold, hold_after=3)
    running = driver.start()
    first = await driver.at_hold()
    first_aborts = asyncio.ensure_future(driver.abort_active(10))
    hold.set()
    ended, failed = await first_aborts
    generation = await running
    assert (ended, failed) == ([first.rid], [])
    assert generation.output_ids == expected
    assert sum(len(request.output_ids) for request in driver.requests) == len(expected)


async def test_what_was_sampled_counts_towards_the_fewest_tokens_asked_for(any_driver: Driver) -> None:
    expected = any_driver.says(faults=(faults.DropConnection(4),))
    any_driver.assert_pieces(await any_driver.run(any_driver.generation(min_new_tokens=6)), expected)
    assert [request.sampling_params["min_new_tokens"] for request in any_driver.requests] == [6, 2]


@pytest.mark.parametrize(("fewest", "sent"), [(3, [3, 0]), (9, [5, 1])])
async def test_the_fewest_tokens_are_never_negative_nor_more_than_the_budget(
    driver: Driver, fewest: int, sent: list[int]
) -> None:
    """SGLang refuses both."""
    driver.says(faults=faults.DropConnection(4))
    await driver.run(driver.generation(5, min_new_tokens=fewest))
    assert [request.sampling_params["min_new_tokens"] for request in driver.requests] == sent


# Samplers with a state.


@pytest.mark.parametrize(
    "sampling",
    [
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"json_schema": '{"type": "object"}'},
    ],
    ids=lambda sampling: next(iter(sampling)),
)
@pytest.mark.parametrize("how", ["aborted", "lost"])
async def test_a_sampler_with_a_state_starts_over_from_its_prompt(
    any_driver: Driver, sampling: dict[str, Any], how: str
) -> None:
    fault: dict[str, Any] = {"faults": faults.DropConnection(3)} if how == "lost" else {}
    hold: dict[str, Any] = {} if fault else {"hold": asyncio.Event(), "hold_after": 3}
    expected = any_driver.says(**fault, **hold)
    any_driver.engine.set_weight_version("1")
    generation = any_driver.generation(**sampling)
    text = generation.text
    running = any_driver.start(generation)
    if how == "aborted":
        await any_driver.at_hold()
        any_driver.abort_all()
    await running
    first, second = any_driver.requests
    assert first.output_ids
    assert second.input_ids == first.input_ids == list(PROMPT)
    assert second.sampling_params["max_new_tokens"] == 100
    assert generation.output_ids == expected
    assert generation.logprobs == second.output_logprobs
    assert [(span.start, span.end) for span in generation.spans] == [(0, len(expected))]
    assert any_driver.fresh == [generation.text]
    assert generation.text is not text


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.3}, {"top_p": 0.5}, {"repetition_penalty": 1.0}, {"stop": ["never"]}]
)
async def test_all_other_samplers_go_on(driver: Driver, sampling: dict[str, Any]) -> None:
    expected = driver.says(faults=faults.DropConnection(3))
    driver.assert_pieces(await driver.run(driver.generation(**sampling)), expected)


# Stop strings.


@pytest.mark.parametrize("drop", [None, 1, 2, 3])
async def test_a_stop_string_ends_the_reply_at_the_id_that_completes_it(
    any_driver: Driver, drop: int | None
) -> None:
    ids = any_driver.says(faults=faults.DropConnection(drop) if drop else ())
    generation = await any_driver.run(any_driver.generation(stop=["three f", "two thr"]))
    cut = len(any_driver.engine.vocabulary.encode("one two three"))
    assert generation.output_ids == ids[:cut]
    assert len(generation.logprobs) == cut
    assert generation.finish is not None
    assert generation.finish.kind == "stop"
    assert generation.spans[-1].end == cut
    await any_driver.engine.wait_idle()


async def test_a_stop_string_that_the_engine_does_not_see_closes_the_call(driver: Driver) -> None:
    """Across the seam of two requests only we can see it."""
    driver.says("one two three", hold=asyncio.Event(), hold_after=2)
    running = driver.start(driver.generation(stop=["two three"]))
    await driver.at_hold(after=2)
    driver.abort_all()
    generation = await running
    assert generation.output_ids == driver.engine.vocabulary.encode("one two three")
    assert generation.finish is not None
    assert generation.finish.kind == "stop"

"""Every sampled token carries the name of the weights that sampled it, or says that it is not known."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.fake_sglang import faults
from tests.generation.driver import Driver, driving
from tests.support.waiting import until


def spans(generation: Any) -> list[tuple[int, int, str]]:
    return [(span.start, span.end, span.version) for span in generation.spans]


async def test_tokens_carry_the_version_that_sampled_them(any_driver: Driver) -> None:
    any_driver.engine.set_weight_version("1")
    expected = any_driver.says(hold=asyncio.Event(), hold_after=3)
    running = any_driver.start()
    await any_driver.at_hold()
    any_driver.abort_all()
    await any_driver.engine.wait_until(lambda: any_driver.requests[0].done)
    any_driver.engine.set_weight_version("2")
    generation = await running
    assert generation.spans[0].version == "1"
    assert generation.spans[-1] == generation.spans[-1].__class__(generation.spans[-1].start, len(expected), "2")


async def test_a_version_that_changes_inside_a_call_is_split_where_it_changed(any_driver: Driver) -> None:
    any_driver.engine.set_weight_version("1")
    hold = asyncio.Event()
    expected = any_driver.says(hold=hold, hold_after=3)
    running = any_driver.start()
    await any_driver.at_hold()
    any_driver.engine.set_weight_version("2")
    hold.set()
    assert spans(await running) == [(0, 3, "1"), (3, len(expected), "2")]


async def test_a_server_without_spans_names_one_version_for_an_undisturbed_call(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, version_spans=False, weight_version="1") as driver:
        expected = driver.says()
        assert spans(await driver.run()) == [(0, len(expected), "1")]


async def test_a_server_without_spans_leaves_a_disturbed_call_unknown(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, version_spans=False, weight_version="1") as driver:
        hold = asyncio.Event()
        expected = driver.says(hold=hold, hold_after=3)
        generation = driver.generation()
        running = driver.start(generation)
        await until(lambda: len(generation.output_ids) == 3, "three ids")
        driver.engine.set_weight_version("2")
        hold.set()
        assert spans(await running) == [(0, len(expected), "unknown")]


async def test_tokens_of_a_lost_connection_have_the_version_that_was_named_with_them(any_driver: Driver) -> None:
    any_driver.engine.set_weight_version("1")
    expected = any_driver.says(faults=faults.DropConnection(3))
    generation = await any_driver.run()
    assert spans(generation) == [(0, len(expected), "1")]

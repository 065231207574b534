"""Every sampled token carries the name of the weights that sampled it, or says that it is not known."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.base import ReportedVersions
from adapters.engines.sglang import ReplyReader
from sidecar.generation.call_versions import CallVersions
from tests.fake_sglang import faults
from tests.generation.driver import PROMPT, Driver, driving
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


# Servers before 0.5.19 give no spans.


@pytest.mark.parametrize(
    ("known", "chunks", "version"),
    [
        ("1", [(1, "1"), (5, "1")], "1"),
        ("1", [(1, "2"), (5, "2")], "2"),  # a call that waited out an update: the first token has its version
        ("1", [(3, "2"), (5, "2")], None),  # some of the three may be from before the change
        (None, [(3, "2")], "2"),
        ("1", [(0, "2"), (3, "2")], "2"),
        ("1", [(1, "1"), (5, "2")], None),
        ("1", [(1, "1"), (2, "2"), (5, "1")], None),
        ("1", [(1, None), (5, None)], None),
    ],
    ids=str,
)
def test_without_spans_a_name_is_true_if_it_cannot_have_changed(
    known: str | None, chunks: list[tuple[int, str | None]], version: str | None
) -> None:
    reader, versions = ReplyReader(), CallVersions(known)
    for count, named in chunks:
        ids = list(range(count))
        meta = {
            "finish_reason": None,
            "completion_tokens": count,
            "output_token_logprobs": [[-1.0, index, None] for index in ids],
            "weight_version": named,
        }
        reader.read({"output_ids": ids, "meta_info": meta})
        versions.read(reader)
    assert versions.reported == ReportedVersions(single=version)
    assert versions.changed is (version is None and chunks[0][1] is not None)


@pytest.mark.parametrize(("ids", "version"), [([7], None), ([], "2")])
def test_without_spans_what_an_abort_returns_may_be_from_before_the_change(ids: list[int], version: str) -> None:
    reader, versions = ReplyReader(), CallVersions("1")
    meta = {
        "finish_reason": {"type": "abort", "message": "Abort"},
        "completion_tokens": len(ids),
        "output_token_logprobs": [[-1.0, index, None] for index in ids],
        "weight_version": "2",
    }
    reader.read({"output_ids": ids, "meta_info": meta})
    versions.read(reader)
    assert versions.reported == ReportedVersions(single=version)


async def test_without_spans_a_first_token_names_its_version(qwen3_dir: Path) -> None:
    """SGLang's first chunk comes with the first token, so a call that waited out an update is known."""
    async with driving(qwen3_dir, version_spans=False, weight_version="1") as driver:
        driver.says()
        await driver.run()
        driver.engine.set_weight_version("2")
        expected = driver.says()
        assert spans(await driver.run()) == [(0, len(expected), "2")]


async def test_without_spans_each_request_has_a_version_of_its_own(qwen3_dir: Path) -> None:
    async with driving(qwen3_dir, version_spans=False, weight_version="1") as driver:
        expected = driver.says(hold=asyncio.Event(), hold_after=3)
        running = driver.start()
        await driver.at_hold()
        driver.abort_all()
        await driver.engine.wait_until(lambda: driver.requests[0].done)
        driver.engine.set_weight_version("2")
        assert spans(await running) == [(0, 3, "1"), (3, len(expected), "2")]


@pytest.mark.parametrize(("changes", "version"), [(False, "1"), (True, "unknown")])
async def test_without_spans_a_lost_partial_has_the_known_version_if_it_did_not_change(
    qwen3_dir: Path, changes: bool, version: str
) -> None:
    async with driving(qwen3_dir, version_spans=False, weight_version="1") as driver:
        hold = asyncio.Event()
        expected = driver.says(hold=hold, hold_after=3, faults=faults.DropConnection(5))
        generation = driver.generation()
        running = driver.start(generation)
        await until(lambda: len(generation.output_ids) == 3, "three ids")
        if changes:
            driver.engine.set_weight_version("2")
        hold.set()
        first, *rest = spans(await running)
        assert first == (0, 5 if changes else len(expected), version)  # equal neighbours are one span
        assert rest == ([(5, len(expected), "2")] if changes else [])
        assert len(driver.requests) == 2


async def test_a_server_that_names_no_version_leaves_all_unknown(driver: Driver) -> None:
    driver.engine.set_weight_version(None)  # type: ignore[arg-type]
    driver.engine.options.version_spans = False
    expected = driver.says()
    assert spans(await driver.run()) == [(0, len(expected), "unknown")]


# Recording off.


async def test_without_recording_every_sampled_token_is_unknown(any_driver: Driver) -> None:
    any_driver.controller._record_versions = False
    any_driver.engine.set_weight_version("7")
    expected = any_driver.says(faults=faults.DropConnection(3))
    assert spans(await any_driver.run()) == [(0, len(expected), "unknown")]
    assert any_driver.controller.weight_version == "7"  # what a resume compares is known all the same


# One version alone (`--no-partial-rollout`).


@pytest.mark.parametrize("how", ["aborted", "lost"])
async def test_a_preempted_reply_starts_over_on_the_new_weights(any_driver: Driver, how: str) -> None:
    any_driver.engine.set_weight_version("1")
    fault: dict[str, Any] = {"faults": faults.DropConnection(5)} if how == "lost" else {}
    hold = asyncio.Event()
    expected = any_driver.says(hold=hold, hold_after=3, **fault)
    generation = any_driver.generation(one_version=True)
    running = any_driver.start(generation)
    first = await any_driver.at_hold()
    if how == "aborted":
        any_driver.abort_all()
        await any_driver.engine.wait_until(lambda: first.done)
    any_driver.engine.set_weight_version("2")
    hold.set()
    await running
    assert spans(generation) == [(0, len(expected), "2")]
    first, second = any_driver.requests
    assert second.input_ids == first.input_ids == list(PROMPT)
    assert generation.logprobs == second.output_logprobs
    assert any_driver.fresh == [generation.text]


@pytest.mark.parametrize("with_spans", [True, False])
async def test_a_reply_inside_which_the_version_changed_starts_over(qwen3_dir: Path, with_spans: bool) -> None:
    """What the engine's own `in_place` and `retract` do without an abort."""
    async with driving(qwen3_dir, version_spans=with_spans, weight_version="1") as driver:
        hold = asyncio.Event()
        expected = driver.says(hold=hold, hold_after=3)
        generation = driver.generation(one_version=True)
        running = driver.start(generation)
        await driver.at_hold()
        await until(lambda: driver.controller.weight_version == "1", "the first version")
        driver.engine.set_weight_version("2")
        driver.says()
        hold.set()
        await running
        assert spans(generation) == [(0, len(expected), "2")]
        assert [request.input_ids for request in driver.requests] == [list(PROMPT)] * 2
        assert generation.preemptions == 1
        assert generation.finish is not None


async def test_a_changed_version_alone_is_no_reason_to_start_over(any_driver: Driver) -> None:
    any_driver.engine.set_weight_version("1")
    hold = asyncio.Event()
    expected = any_driver.says(hold=hold, hold_after=3)
    running = any_driver.start()
    await any_driver.at_hold()
    any_driver.engine.set_weight_version("2")
    hold.set()
    any_driver.assert_pieces(await running, expected)
    assert len(any_driver.requests) == 1


async def test_the_version_is_checked_before_each_call(driver: Driver) -> None:
    """The second call would be on other weights, and nothing is sampled in vain."""
    seen: list[str | None] = []

    def check(version: str | None) -> None:
        seen.append(version)
        if len(seen) == 2:
            raise LookupError(version)

    driver.engine.set_weight_version("1")
    driver.says(faults=faults.EngineAbort(3, None, None))
    with pytest.raises(LookupError, match="1"):
        await driver.controller.run(driver.generation(one_version=True), driver.text, check)
    assert seen == [None, "1"]
    assert len(driver.requests) == 1
    assert not driver.controller.active

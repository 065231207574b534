"""Rows of one step: gathered without a gap, whatever happens to the calls that bring them."""

from __future__ import annotations

import asyncio
import base64

import numpy as np
import numpy.typing as npt
import pytest

from adapters.engines.routed_experts import ExpertShape, RoutedReply
from sidecar.generation import held_rows
from sidecar.generation.held_rows import HeldRows
from sidecar.tito.records import RoutedRows, VersionSpan

SHAPE = ExpertShape(2, 2, 16)
ALL = np.arange(4000).reshape(-1, 2, 2) % 16
"""The rows that the model's router would give tokens 0, 1, ..."""


def reply(start: int, end: int, sampled: int, rows: npt.NDArray[np.int64] = ALL) -> RoutedReply:
    """Rows `[start, end)` of a call that sampled so many ids."""
    return RoutedReply(base64.b64encode(rows[start:end].astype("<i4").tobytes()).decode(), None, sampled)


def held(rows: HeldRows, tokens: int) -> npt.NDArray[np.uint8]:
    """What would be stored."""
    stored = rows.summary(tokens)
    assert stored is not None
    shape = (stored.end - stored.start, 2, 2)
    return np.frombuffer(rows.data(stored), f"<u{stored.itemsize}").reshape(shape)


async def test_calls_of_a_step_follow_each_other() -> None:
    rows = HeldRows(SHAPE, 9)  # the segment had ten tokens
    assert rows.end == 9
    rows.offer(reply(9, 16, 3), prompt=14, before=14, kept=17, spans=())
    await rows.settle()
    assert rows.end == 16
    rows.offer(reply(16, 19, 3), prompt=14, before=17, kept=20, spans=())
    await rows.settle()
    assert rows.missing(20) is None
    assert rows.summary(20) == RoutedRows(9, 19, 2, 2, 1)
    assert np.array_equal(held(rows, 20), ALL[9:19])
    await rows.settle()
    assert rows.end == 19


async def test_rows_of_ids_that_were_cut_off_go_with_them() -> None:
    rows = HeldRows(SHAPE, 0)
    rows.offer(reply(0, 19, 10), prompt=10, before=10, kept=14, spans=())
    await rows.settle()
    assert rows.end == 13
    assert rows.missing(14) is None
    assert np.array_equal(held(rows, 12), ALL[:11])


@pytest.mark.parametrize(("start", "end"), [(9, 15), (9, 17), (8, 16), (0, 17), (0, 15), (9, 9)])
async def test_another_count_is_told_and_nothing_of_it_kept(start: int, end: int) -> None:
    rows = HeldRows(SHAPE, 9)
    rows.offer(reply(start, end, 3), prompt=14, before=14, kept=17, spans=())
    await rows.settle()
    assert rows.problem == (f"the engine sent {end - start} rows of routed_experts from 9 on, where 7 are right")
    assert rows.end == 9
    assert rows.summary(17) is None
    assert rows.missing(17) == rows.problem


async def test_all_rows_in_place_of_the_new_ones_are_sliced() -> None:
    rows = HeldRows(SHAPE, 9)
    rows.offer(reply(0, 16, 3), prompt=14, before=14, kept=17, spans=())
    await rows.settle()
    assert np.array_equal(held(rows, 17), ALL[9:16])


async def test_no_rows_at_all_are_missing_rows() -> None:
    rows = HeldRows(SHAPE, 9)
    assert rows.missing(17) == "the engine sent no rows for tokens 9 to 15"
    assert rows.missing(10) is None
    assert rows.summary(17) is None


@pytest.mark.parametrize(
    ("versions", "trusted"),
    [([(0, 5, "1")], True), ([(0, 2, "1"), (2, 5, "2")], False), ([(0, 5, "unknown")], False)],
)
async def test_rows_that_were_lost_count_only_if_the_same_weights_made_them_anew(
    versions: list[tuple[int, int, str]], trusted: bool
) -> None:
    rows = HeldRows(SHAPE, 0)
    spans = [VersionSpan(*one) for one in versions]
    rows.offer(reply(0, 14, 3), prompt=10, before=12, kept=15, spans=spans)  # two ids came without their rows
    await rows.settle()
    assert (rows.missing(15) is None) is trusted
    assert np.array_equal(held(rows, 15), ALL[:14])


async def test_versions_before_what_was_lost_do_not_matter() -> None:
    rows = HeldRows(SHAPE, 0)
    rows.offer(reply(0, 11, 2), prompt=10, before=10, kept=12, spans=[VersionSpan(0, 2, "1")])
    await rows.settle()
    spans = [VersionSpan(0, 2, "1"), VersionSpan(2, 6, "2")]
    rows.offer(reply(11, 15, 2), prompt=10, before=14, kept=16, spans=spans)  # ids 2 and 3 came without rows
    await rows.settle()
    assert rows.missing(16) is None


async def test_rows_made_anew_without_a_new_token_are_asked_for_again() -> None:
    """Nothing tells which weights made them."""
    rows = HeldRows(SHAPE, 0)
    rows.offer(reply(0, 11, 0), prompt=10, before=12, kept=12, spans=[VersionSpan(0, 2, "1")])
    await rows.settle()
    assert (rows.end, rows.problem) == (0, None)


async def test_a_step_that_starts_over_has_forgotten_all() -> None:
    rows = HeldRows(SHAPE, 9)
    rows.offer(reply(9, 15, 3), prompt=14, before=14, kept=17, spans=())
    await rows.settle()
    rows.offer(reply(9, 16, 3), prompt=14, before=14, kept=17, spans=())
    rows.clear()
    await rows.settle()
    assert (rows.end, rows.problem) == (9, None)
    rows.offer(reply(9, 15, 2), prompt=14, before=14, kept=16, spans=())
    await rows.settle()
    assert rows.missing(16) is None


async def test_decoding_that_was_cancelled_is_done_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_rows, "_AT_ONCE", 0)
    rows = HeldRows(SHAPE, 0)
    rows.offer(reply(0, 900, 100), prompt=801, before=801, kept=901, spans=())
    task = asyncio.ensure_future(rows.settle())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert rows.end == 0
    await rows.settle()
    assert np.array_equal(held(rows, 901), ALL[:900])


async def test_parts_of_different_width_are_stored_in_the_wider_one() -> None:
    wide = ALL + 0
    wide[12:] += 300
    rows = HeldRows(ExpertShape(2, 2, 512), 0)
    rows.offer(reply(0, 12, 3, wide), prompt=10, before=10, kept=13, spans=())
    await rows.settle()
    rows.offer(reply(12, 15, 3, wide), prompt=10, before=13, kept=16, spans=())
    await rows.settle()
    assert rows.summary(16) == RoutedRows(0, 15, 2, 2, 2)
    assert np.array_equal(held(rows, 16), wide[:15])

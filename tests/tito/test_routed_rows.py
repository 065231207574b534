"""The rows of a segment: each token's own, from whichever step of its path brought it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from adapters.engines.routed_experts import ExpertShape
from sidecar.tito.records import RoutedRows
from sidecar.tito.routed_rows import Coverage, blob_key, rows_held
from sidecar.tito.segment_rows import segment_rows
from sidecar.tito.trajectory import Trajectory
from tests.tito.builders import step

ALL = np.arange(4000, dtype=np.uint16).reshape(-1, 2, 2) % 250


class Rows:
    """A trajectory whose steps have five tokens each, and the rows that they store."""

    def __init__(self) -> None:
        self.trajectory = Trajectory()
        self.blobs: dict[bytes, bytes] = {}

    def add(
        self, name: str, parent: str | None, rows: tuple[int, int] | None, *, wide: bool = False, **changes: Any
    ) -> None:
        record = step(name, parent, **changes)
        if rows is not None:
            start, end = rows
            kind = "<u2" if wide else "u1"
            record.routed_rows = RoutedRows(start, end, 2, 2, np.dtype(kind).itemsize)
            self.blobs[blob_key(name)] = ALL[start:end].astype(kind).tobytes()
        self.trajectory.add(record)

    def path(self, leaf: str) -> list[Any]:
        node = self.trajectory.get(leaf)
        assert node is not None
        return node.segment_path()

    def of(self, leaf: str, trained: str) -> tuple[npt.NDArray[Any], int] | None:
        path = self.path(leaf)
        found = segment_rows(path, frozenset(trained))
        if found is None:
            return None
        parts = [piece.array(self.blobs[blob_key(piece.step_id)], found.itemsize) for piece in found.pieces]
        experts = np.concatenate([*parts, found.placeholders()])
        assert experts.nbytes == found.nbytes and len(experts) == found.total
        return experts, found.missing


@pytest.fixture
def rows() -> Rows:
    return Rows()


def test_steps_follow_each_other(rows: Rows) -> None:
    rows.add("a", None, (0, 4))
    rows.add("b", "a", (4, 9), wide=True)
    rows.add("c", "b", (9, 14))
    found = rows.of("c", "abc")
    assert found is not None
    experts, missing = found
    assert missing == 0
    assert experts.dtype == np.uint16
    assert np.array_equal(experts, ALL[:14])


def test_siblings_share_what_is_before_them(rows: Rows) -> None:
    rows.add("a", None, (0, 4))
    rows.add("b", "a", (4, 9))
    rows.add("c", "a", (4, 9))
    for leaf in "bc":
        found = rows.of(leaf, "a" + leaf)
        assert found is not None and np.array_equal(found[0], ALL[:9])


def test_a_later_step_brings_what_earlier_ones_lack(rows: Rows) -> None:
    rows.add("a", None, (0, 4))
    rows.add("b", "a", None)
    rows.add("c", "b", (4, 14))
    found = rows.of("c", "ac")
    assert found is not None and np.array_equal(found[0], ALL[:14])


def test_what_no_step_brought_is_told_and_belongs_to_no_trained_token(rows: Rows) -> None:
    rows.add("a", None, (0, 4))
    rows.add("b", "a", (4, 6))
    found = rows.of("b", "a")
    assert found is not None
    experts, missing = found
    assert (len(experts), missing) == (9, 3)
    assert np.array_equal(experts[:6], ALL[:6])
    assert (experts[6:] == [0, 1]).all()
    assert rows.of("b", "ab") is None, "a trained token would lack its row"
    assert rows.of("b", "b") is None


def test_a_segment_without_any_rows_has_none(rows: Rows) -> None:
    rows.add("a", None, None)
    assert rows.of("a", "a") is None
    assert rows.of("a", "") is None


def test_rows_behind_a_gap_do_not_count(rows: Rows) -> None:
    rows.add("a", None, (0, 2))
    rows.add("b", "a", (4, 9))
    node = rows.trajectory.get("b")
    assert node is not None and node.coverage == Coverage(2, 2, 2)
    assert rows_held(node, ExpertShape(2, 2)) == 2
    found = rows.of("b", "")
    assert found is not None and found[1] == 7 and (found[0][2:] == [0, 1]).all()


def test_a_model_of_another_shape_begins_anew(rows: Rows) -> None:
    rows.add("a", None, (0, 4))
    node = rows.trajectory.get("a")
    assert node is not None
    assert rows_held(node, ExpertShape(2, 2)) == 4
    assert rows_held(node, ExpertShape(3, 2)) == rows_held(node, ExpertShape(2, 1)) == rows_held(node, None) == 0


def test_a_new_segment_does_not_count_on_the_rows_before_it(rows: Rows) -> None:
    rows.add("a", None, (0, 4))
    rows.add("b", "a", None, segment_reason="tools_changed")
    node = rows.trajectory.get("b")
    assert node is not None and node.coverage is None

"""Routing replay: the rows of a segment, put together from those that its steps brought. Pure.

A step stores its own rows, from where the steps before it in its segment ended; siblings share what came before
them. Where an earlier step lacks rows, a later one has asked for them, too, and stores them with its own. So a
segment of n tokens has n - 1 rows, unless its last steps lack some: those steps do not train (`replay_rows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adapters.engines.routed_experts import ExpertShape
from sidecar.tito.records import RoutedRows, StepRecord

if TYPE_CHECKING:
    from sidecar.tito.trajectory import Node


@dataclass(frozen=True, slots=True)
class Coverage:
    """Rows `[0, end)` of a segment are stored by its steps up to one of them."""

    end: int
    layers: int
    topk: int

    def fits(self, rows: RoutedRows) -> bool:
        """`rows` go on from here: same shape, no gap."""
        return (self.layers, self.topk) == (rows.layers, rows.topk) and rows.start <= self.end


def coverage(before: Coverage | None, record: StepRecord) -> Coverage | None:
    """What is covered after a step, given what was `before` it in its segment."""
    rows = record.routed_rows
    if rows is None:
        return before
    if rows.start > 0 and (before is None or not before.fits(rows)):
        return before
    return Coverage(rows.end, rows.layers, rows.topk)


def rows_held(node: Node, shape: ExpertShape | None) -> int:
    """Rows that a step appended to `node` need not ask for."""
    covered = node.coverage
    if covered is None or shape is None or (covered.layers, covered.topk) != (shape.layers, shape.topk):
        return 0
    return covered.end


def blob_key(step_id: str) -> bytes:
    """Where a step's rows are. They are written once, with the step's final record."""
    return b"routed:" + step_id.encode()

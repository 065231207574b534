"""Routing replay: the rows of a segment, put together from those that its steps brought. Pure.

They are most of a trajectory's bytes, so this only says where they are; whoever sends them reads one step's blob
after the other. See `routed_rows.py` for what a step stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sidecar.tito.records import RoutedRows
from sidecar.tito.trajectory import Node


@dataclass(frozen=True, slots=True)
class RowPiece:
    """Rows `[start, end)` of a segment, out of those that one step stored."""

    step_id: str
    rows: RoutedRows
    start: int
    end: int

    def array(self, blob: bytes, itemsize: int) -> npt.NDArray[Any]:
        """Unsigned ids of `itemsize` bytes, shape [end - start, layers, topk], out of the step's blob."""
        shape = (self.rows.end - self.rows.start, self.rows.layers, self.rows.topk)
        stored = np.frombuffer(blob, f"<u{self.rows.itemsize}").reshape(shape)
        wanted = stored[self.start - self.rows.start : self.end - self.rows.start]
        return wanted.astype(f"<u{itemsize}", copy=False)


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Where the rows of a segment are: unsigned ids of `itemsize` bytes, shape [total, layers, topk].

    The last `missing` rows are no engine's, but the first experts in order: they belong to tokens that do not train
    and that no trained token follows."""

    total: int
    layers: int
    topk: int
    itemsize: int
    pieces: tuple[RowPiece, ...]
    """In order and without gap, up to the missing ones."""
    missing: int

    @property
    def nbytes(self) -> int:
        """Of all rows together."""
        return self.total * self.layers * self.topk * self.itemsize

    def placeholders(self) -> npt.NDArray[Any]:
        """The missing rows, shape [missing, layers, topk]."""
        row = np.arange(self.topk, dtype=f"<u{self.itemsize}")
        return np.tile(row, (self.missing, self.layers, 1))


def segment_rows(nodes: Sequence[Node], trained: frozenset[str]) -> SegmentRows | None:
    """The rows of a segment whose steps are `nodes`, of which `trained` train. Where two steps have a row it is the
    later one's.

    None where a trained token has none: its steps were recorded without routing replay."""
    leaf = nodes[-1]
    covered, total = leaf.coverage, leaf.token_count - 1
    needed = max((node.token_count - 1 for node in nodes if node.record.step_id in trained), default=0)
    if covered is None or covered.end < needed:
        return None
    pieces: list[RowPiece] = []
    itemsize, limit = 1, covered.end
    for node in reversed(nodes):
        rows = node.record.routed_rows
        if rows is None or (rows.layers, rows.topk) != (covered.layers, covered.topk):
            continue
        itemsize = max(itemsize, rows.itemsize)
        if rows.start < limit:
            pieces.append(RowPiece(node.record.step_id, rows, rows.start, min(rows.end, limit)))
            limit = rows.start
    return SegmentRows(total, covered.layers, covered.topk, itemsize, tuple(reversed(pieces)), total - covered.end)

"""Which experts process a token in the stand-in, and how a reply carries them.

Promise: they depend on nothing but the token's place in the sequence, its id and the layer, so a test can say of
any row what it has to be; ids of one token and layer differ, as in a real router. Concurrency: pure functions.
"""

import base64
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.fake_sglang import faults

Shape = tuple[int, int, int]
"""Layers, experts per token, experts in all."""


def routed_experts(ids: Sequence[int], shape: Shape, start: int = 0) -> npt.NDArray[np.int32]:
    """Rows `[start, len(ids) - 1)` of a sequence: int32 [rows, layers, topk]. The last token is never fed back."""
    layers, topk, experts = shape
    positions = np.arange(start, max(start, len(ids) - 1), dtype=np.int64)
    tokens = np.asarray(ids[start : max(start, len(ids) - 1)], dtype=np.int64)
    mixed = positions[:, None] * 7919 + tokens[:, None] * 104_729 + np.arange(layers) * 1_299_709
    first = (mixed >> 3) % experts
    return ((first[:, :, None] + np.arange(topk) * (1 + mixed[:, :, None] % 2)) % experts).astype(np.int32)


def reply_field(
    rows: npt.NDArray[np.int32], every: npt.NDArray[np.int32], wrong: Sequence[faults.Fault]
) -> str | None:
    """`meta_info.routed_experts` of a last chunk; `every` are the rows from 0 on. None: the field is absent."""
    for fault in wrong:
        if isinstance(fault, faults.NoRoutedRows):
            return None
        if isinstance(fault, faults.AllRoutedRows):
            rows = every
        elif isinstance(fault, faults.RoutedRowCount):
            repeated = np.repeat(every[-1:], max(0, fault.delta), axis=0)
            rows = np.concatenate([rows[: len(rows) + min(0, fault.delta)], repeated])
        elif isinstance(fault, faults.ExpertId):
            rows = rows.copy()
            rows[fault.row, :, fault.slots[0] : fault.slots[1]] = fault.value
    return base64.b64encode(rows.astype("<i4").tobytes()).decode()

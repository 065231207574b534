"""What every test of routing replay says of rows: they are those that the stand-in's router chose, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.fake_sglang import RecordedRequest
from tests.fake_sglang.experts import routed_experts
from tests.support.running import Running
from trainer_hooks.packed_array import unpack

SHAPE = (3, 2, 16)
"""Layers, experts per token and experts of the stand-in's model."""

SETTINGS = {
    "use_rollout_routing_replay": True,
    "routing_replay_shape": {"layers": SHAPE[0], "topk": SHAPE[1], "experts": SHAPE[2]},
}
ENGINE = {"experts": SHAPE}


def rows_of(segment: dict[str, Any]) -> npt.NDArray[Any]:
    """The rows that a segment carries."""
    return unpack(segment["routed_experts"])


def assert_rows(segment: dict[str, Any], shape: tuple[int, int, int] = SHAPE) -> None:
    """Each token but the last has its row, and it is the router's own."""
    expected = routed_experts(segment["tokens"], shape)
    assert rows_of(segment).shape == expected.shape == (len(segment["tokens"]) - 1, *shape[:2])
    assert np.array_equal(rows_of(segment), expected)


def asked(request: RecordedRequest) -> int | None:
    """From which row on a request asks; None: for none."""
    if "return_routed_experts" not in request.body:
        assert "routed_experts_start_len" not in request.body
        return None
    assert request.body["return_routed_experts"] is True
    start: int = request.body["routed_experts_start_len"]
    return start


def reasons(segment: dict[str, Any]) -> list[str]:
    """Why steps of a segment do not train."""
    return [one["reason"] for one in segment["extra_info"]["untrainable"]]


async def only_segment(running: Running, session: str) -> dict[str, Any]:
    """The one segment of a session."""
    [segment] = await running.segments(session)
    return segment

"""Case 84: elsewhere expert ids were nine tenths of a trajectory's bytes, and narrowing them could wrap around.

Here an id takes one byte, or two where the model has more experts; it is checked against the experts there are
before it is narrowed, and neither the store nor the reply to the trainer holds ids as JSON numbers.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from sidecar.store.packed import Packer
from tests.fake_sglang import Reply, faults
from tests.fake_sglang.experts import routed_experts
from tests.routing_replay.rows import assert_rows, only_segment, reasons, rows_of
from tests.support.chat import user
from tests.support.conversation import Conversation
from tests.support.running import Running, engine_for, running_sidecar


def settings(shape: tuple[int, int, int]) -> dict[str, Any]:
    names = ("layers", "topk", "experts")
    return {
        "use_rollout_routing_replay": True,
        "routing_replay_shape": dict(zip(names, shape, strict=True)),
    }


def stored_bytes(state: Path) -> list[bytes]:
    """The rows in the store, as another process sees them, unpacked."""
    with sqlite3.connect(f"file:{state / 'tito.db'}?mode=ro", uri=True) as database:
        found = database.execute("SELECT data FROM blob WHERE key >= ? AND key < ?", (b"routed:", b"routed;"))
        return [Packer().unpack(data) for (data,) in found]


@pytest.mark.parametrize(("experts", "width"), [(128, 1), (256, 1), (384, 2)])
async def test_an_id_takes_as_many_bytes_as_it_needs(
    qwen3_dir: Path, tmp_path: Path, experts: int, width: int
) -> None:
    shape = (4, 3, experts)
    async with (
        engine_for(qwen3_dir, experts=shape) as engine,
        running_sidecar(engine, tmp_path, **settings(shape)) as running,
    ):
        await Conversation(running, "s").say(user("Hi " * 50), reply="Hello.")
        [request] = engine.requests
        tokens = request.input_ids + request.output_ids
        assert routed_experts(tokens, shape).max() > 255 or width == 1
        [data] = stored_bytes(tmp_path)
        assert len(data) == (len(tokens) - 1) * 4 * 3 * width
        segment = await only_segment(running, "s")
        assert_rows(segment, shape)
        assert rows_of(segment).dtype.itemsize == width
        assert isinstance(segment["routed_experts"]["data"], str)


@pytest.mark.parametrize("value", [256, 65536 + 3, -253, 2**31 - 1])
async def test_an_id_that_would_wrap_around_is_noticed(qwen3_dir: Path, tmp_path: Path, value: int) -> None:
    shape = (2, 2, 128)
    running: Running
    async with (
        engine_for(qwen3_dir, experts=shape) as engine,
        running_sidecar(engine, tmp_path, **settings(shape)) as running,
    ):
        wrong = faults.ExpertId(value, row=5, slots=(0, 1))
        await Conversation(running, "s").say(user("Hi"), reply=Reply(text="Hello.", faults=wrong))
        segment = await only_segment(running, "s")
        assert reasons(segment) == ["replay_rows"]
        assert stored_bytes(tmp_path) == []

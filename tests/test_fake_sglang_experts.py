"""The stand-in's routed experts: SGLang 0.5.23's field, rows and refusals, and the faults that distort them."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import orjson
import pytest

from tests.fake_sglang import FakeSGLang, Reply, faults
from tests.fake_sglang.experts import routed_experts

SHAPE = (3, 2, 16)
PROMPT = [5, 6, 7, 8]
ANSWER = [9, 10, 11, 2]


@pytest.fixture
async def engine() -> AsyncIterator[FakeSGLang]:
    async with FakeSGLang(vocab_size=100, eos_token_ids=(2,), experts=SHAPE) as running:
        yield running


async def chunks(engine: FakeSGLang, **fields: Any) -> list[dict[str, Any]]:
    """The payloads of one stream."""
    if not engine.replies:
        engine.replies.append(Reply(ids=ANSWER[:-1]))
    body = {"input_ids": PROMPT, "stream": True, "return_logprob": True, **fields}
    async with aiohttp.ClientSession() as client, client.post(f"{engine.url}/generate", json=body) as response:
        text = await response.text()
    return [orjson.loads(one[6:]) for one in text.split("\n\n") if one.startswith("data: {")]


def rows(chunk: dict[str, Any]) -> npt.NDArray[np.int32]:
    raw = base64.b64decode(chunk["meta_info"]["routed_experts"])
    return np.frombuffer(raw, "<i4").reshape(-1, *SHAPE[:2])


@pytest.mark.parametrize("start", [0, 1, 4])
async def test_the_last_chunk_has_the_rows_from_where_they_were_asked(engine: FakeSGLang, start: int) -> None:
    *before, last = await chunks(engine, return_routed_experts=True, routed_experts_start_len=start)
    assert before and all("routed_experts" not in chunk["meta_info"] for chunk in before)
    assert len(rows(last)) == len(PROMPT + ANSWER) - 1 - start
    assert np.array_equal(rows(last), routed_experts(PROMPT + ANSWER, SHAPE)[start:])


async def test_rows_depend_on_place_and_id_alone() -> None:
    one, other = routed_experts([5, 6, 7, 8], SHAPE), routed_experts([5, 6, 9, 8], SHAPE)
    assert np.array_equal(one[:2], other[:2]) and not np.array_equal(one[2], other[2])
    assert not np.array_equal(routed_experts([6, 6, 6], SHAPE)[0], routed_experts([6, 6, 6], SHAPE)[1])
    assert np.array_equal(routed_experts([5, 6, 7, 8], SHAPE, 2), one[2:])
    many = routed_experts(list(range(500)), SHAPE)
    assert many.min() == 0 and many.max() == 15
    assert (many[:, :, 0] != many[:, :, 1]).all(), "a router chooses nothing twice"


async def test_without_the_flag_or_without_being_asked_the_field_is_absent(engine: FakeSGLang) -> None:
    assert "routed_experts" not in (await chunks(engine))[-1]["meta_info"]
    async with FakeSGLang(vocab_size=100, eos_token_ids=(2,)) as dense:
        assert "routed_experts" not in (await chunks(dense, return_routed_experts=True))[-1]["meta_info"]


async def test_a_start_behind_the_prompt_is_refused(engine: FakeSGLang) -> None:
    [refused] = await chunks(engine, return_routed_experts=True, routed_experts_start_len=5)
    assert refused["error"]["code"] == 400 and "routed_experts_start_len" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("fault", "count"),
    [(faults.RoutedRowCount(-2), 3), (faults.RoutedRowCount(1), 6), (faults.AllRoutedRows(), 7)],
)
async def test_faults_change_how_many_rows_come(engine: FakeSGLang, fault: faults.Fault, count: int) -> None:
    engine.replies.append(Reply(ids=ANSWER[:-1], faults=fault))
    last = (await chunks(engine, return_routed_experts=True, routed_experts_start_len=2))[-1]
    assert len(rows(last)) == count


async def test_faults_change_what_rows_say(engine: FakeSGLang) -> None:
    engine.replies.append(Reply(ids=ANSWER[:-1], faults=faults.ExpertId(255, row=1, slots=(1, 2))))
    found = rows((await chunks(engine, return_routed_experts=True))[-1])
    expected = routed_experts(PROMPT + ANSWER, SHAPE)
    expected[1, :, 1] = 255
    assert np.array_equal(found, expected)
    engine.replies.append(Reply(ids=ANSWER[:-1], faults=faults.NoRoutedRows()))
    assert "routed_experts" not in (await chunks(engine, return_routed_experts=True))[-1]["meta_info"]


async def test_the_server_says_whether_it_returns_them(engine: FakeSGLang) -> None:
    async with aiohttp.ClientSession() as client, client.get(f"{engine.url}/server_info") as response:
        assert (await response.json())["enable_return_routed_experts"] is True

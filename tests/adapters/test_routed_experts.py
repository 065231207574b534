"""SGLang's routed experts: what is decoded bit for bit, and what is refused with a reason."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from adapters.engines import routed_experts
from adapters.engines.base import EngineRequest
from adapters.engines.routed_experts import (
    ExpertShape,
    RoutedReply,
    RoutingError,
    decode,
    expert_shape,
    load_event,
    routed_reply,
)
from adapters.engines.sglang import ReplyReader, engine_info, generate_body

SHAPE = ExpertShape(layers=2, topk=3, experts=64)


def encoded(rows: npt.NDArray[Any], kind: str = "<i4") -> str:
    """As a server sends rows."""
    return base64.b64encode(rows.astype(kind).tobytes()).decode()


def decoded(payload: object, shape: ExpertShape = SHAPE, wire: object = None) -> npt.NDArray[Any]:
    """The rows, whatever number of slices they came in."""
    work = decode(payload, shape, wire)
    while True:
        try:
            next(work)
        except StopIteration as done:
            rows: npt.NDArray[Any] = done.value
            return rows


def some_rows(count: int, shape: ExpertShape = SHAPE, below: int = 64) -> npt.NDArray[Any]:
    """Distinct experts for each token and layer."""
    rng = np.random.default_rng(count)
    keys = rng.random((count, shape.layers, below))
    return np.argsort(keys, axis=2)[:, :, : shape.topk]


@given(
    hnp.arrays(np.int32, st.tuples(st.integers(0, 9), st.just(2), st.just(3)), elements=st.integers(0, 254)),
    st.sampled_from([None, "int32", "uint16", "uint8"]),
)
def test_rows_come_back_as_they_were_sent(rows: npt.NDArray[np.int32], wire: str | None) -> None:
    kinds = {None: "<i4", "int32": "<i4", "uint16": "<u2", "uint8": "u1"}
    found = decoded(encoded(rows, kinds[wire]), ExpertShape(2, 3), wire)
    assert found.dtype == np.uint8
    assert found.shape == rows.shape
    assert np.array_equal(found, rows)


@pytest.mark.parametrize(
    ("experts", "largest", "kept"),
    [(64, 63, "uint8"), (256, 255, "uint8"), (257, 256, "uint16"), (512, 100, "uint8"), (None, 255, "uint8"),
     (None, 65535, "uint16"), (65536, 65535, "uint16")],
)  # fmt: skip
def test_ids_are_kept_in_the_narrowest_type_that_holds_them(experts: int | None, largest: int, kept: str) -> None:
    rows = some_rows(4)
    rows[-1, -1, -1] = largest
    found = decoded(encoded(rows), ExpertShape(2, 3, experts))
    assert found.dtype == kept
    assert np.array_equal(found, rows)


@pytest.mark.parametrize(
    ("experts", "wrong"), [(64, 64), (64, -1), (64, 255), (None, -1), (None, 65536), (256, 256), (64, -(2**31))]
)
def test_an_id_outside_the_models_experts_is_refused(experts: int | None, wrong: int) -> None:
    rows = some_rows(4)
    rows[2, 1, 0] = wrong
    limit = (experts or 65536) - 1
    with pytest.raises(RoutingError, match=rf"holds expert {wrong}; ids are 0 to {limit}$"):
        decoded(encoded(rows), ExpertShape(2, 3, experts))


@pytest.mark.parametrize("experts", [None, 300])
def test_255_twice_for_one_token_is_no_choice_of_a_router(experts: int | None) -> None:
    rows = some_rows(4)
    rows[1, 0, 0] = rows[2, 0, 0] = 255  # once each: an expert as any other
    assert np.array_equal(decoded(encoded(rows), ExpertShape(2, 3, experts)), rows)
    rows[2, 0, 2] = 255
    with pytest.raises(RoutingError, match="255 more than once"):
        decoded(encoded(rows), ExpertShape(2, 3, experts))


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (None, "NoneType"),
        (7, "int"),
        ("abc", "no whole base64"),
        ("%" * 32, "no base64"),
        ("é" * 32, "no base64"),
        (
            base64.b64encode(b"\0" * 23).decode(),
            "23 bytes, which are no whole rows of 2 layers x 3 experts as int",
        ),
        (base64.b64encode(b"\0" * 28).decode(), "28 bytes, which are no whole rows"),
    ],
)
def test_what_holds_no_whole_rows_is_refused(payload: object, said: str) -> None:
    with pytest.raises(RoutingError, match=said):
        decoded(payload)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(RoutingError, match="routed_experts_dtype is 'float16'"):
        decoded(encoded(some_rows(1)), wire="float16")


def test_no_rows_are_rows_too() -> None:
    assert decoded("").shape == (0, 2, 3)


@pytest.mark.parametrize("slice_size", [16, 2**20])
@pytest.mark.parametrize("wire", ["int32", "uint8"])
def test_padding_in_the_middle_is_noticed(monkeypatch: pytest.MonkeyPatch, wire: str, slice_size: int) -> None:
    """Two texts glued together would make the rows after the seam other ones."""
    monkeypatch.setattr(routed_experts, "_SLICE", slice_size)
    with pytest.raises(RoutingError, match="no base64"):
        decoded("A" * 14 + "==" + "A" * 32, ExpertShape(1, 1, 64), wire)


def test_a_large_reply_pauses_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed_experts, "_SLICE", 64)
    rows = some_rows(50)
    work = decode(encoded(rows), SHAPE)
    pauses = 0
    try:
        while True:
            next(work)
            pauses += 1
    except StopIteration as done:
        assert np.array_equal(done.value, rows)
    assert pauses == len(encoded(rows)) // 64


def test_the_shape_of_a_model_is_in_its_config() -> None:
    flat = {"num_hidden_layers": 48, "num_experts_per_tok": 8, "num_experts": 128}
    assert expert_shape(flat) == ExpertShape(48, 8, 128)
    assert expert_shape({"text_config": flat, "num_hidden_layers": 2}) == ExpertShape(48, 8, 128)
    deepseek = {"num_hidden_layers": 61, "num_experts_per_tok": 8, "n_routed_experts": 256}
    assert expert_shape(deepseek) == ExpertShape(61, 8, 256)
    assert expert_shape({"num_hidden_layers": 4, "num_experts_per_tok": 2}) == ExpertShape(4, 2, None)
    for dense in ({}, {"num_hidden_layers": 32}, {**flat, "num_experts_per_tok": None}):
        assert expert_shape(dense) is None


def test_a_chunk_without_the_field_has_no_rows() -> None:
    assert routed_reply({"completion_tokens": 4}, 4) is None
    assert routed_reply({"routed_experts": "", "completion_tokens": 5}, 4) == RoutedReply("", None, 5)
    found = routed_reply({"routed_experts": "x", "routed_experts_dtype": "uint8"}, 4)
    assert found == RoutedReply("x", "uint8", 4)


@pytest.mark.parametrize("count", [0, 5, 2000])
@pytest.mark.parametrize("where", ["first", "last"])
def test_an_event_is_the_same_however_its_rows_are_kept(count: int, where: str) -> None:
    field = {"routed_experts": encoded(some_rows(count))} if count else {}
    rest = {"id": "r", "finish_reason": {"type": "stop"}, "completion_tokens": 3}
    meta = {**field, **rest} if where == "first" else {**rest, **field}
    text = 'it says \\"routed_experts\\":\\"x\\" or "routed_experts":"x" ' * 3000
    data = orjson.dumps({"text": text, "output_ids": [1, 2, 3], "meta_info": meta})
    loaded = load_event(data)
    found = loaded["meta_info"].pop("routed_experts", None)
    assert isinstance(found, bytes if count == 2000 else str if count else type(None))
    assert loaded == {"text": text, "output_ids": [1, 2, 3], "meta_info": rest}
    if count:
        assert np.array_equal(decoded(found), some_rows(count))


BROKEN = [b'{"meta_info":{"routed_experts":"' + b"A" * 2**18, b"[" + b"1," * 2**17, b"{" * 9]


@pytest.mark.parametrize("data", BROKEN, ids=["no end", "a long list", "short"])
def test_an_event_that_is_no_json_is_told(data: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        load_event(data)


def test_a_field_of_that_name_elsewhere_stays_what_it_is() -> None:
    event = {"routed_experts": "A" * 2**18, "meta_info": {}}
    assert load_event(orjson.dumps(event)) == event


def asked(start: int | None) -> dict[str, Any]:
    """The body of a request that asks for rows from `start` on."""
    request = EngineRequest("r", "s", [b"1,2"], {}, 8, (3,), 1, start)
    body: dict[str, Any] = orjson.loads(generate_body(request))
    return body


def test_rows_are_asked_for_only_if_wanted() -> None:
    assert not [name for name in asked(None) if "routed" in name]
    for start in (0, 7):
        body = asked(start)
        assert (body["return_routed_experts"], body["routed_experts_start_len"]) == (True, start)
        assert body["input_ids"] == [1, 2] and "routed_experts_start_len" not in body["sampling_params"]


@pytest.mark.parametrize("said", [True, False, None])
def test_a_server_says_whether_it_returns_them(said: bool | None) -> None:
    info = engine_info({}, {} if said is None else {"enable_return_routed_experts": said}, {})
    assert info.returns_routed_experts is said


def test_the_rows_of_a_reply_come_with_its_last_chunk() -> None:
    reader = ReplyReader()
    chunk = {"output_ids": [5], "meta_info": {"output_token_logprobs": [[-1.0, 5, None]], "completion_tokens": 1}}
    reader.read(chunk)
    assert reader.routed is None
    chunk["meta_info"] |= {"finish_reason": {"type": "abort", "message": ""}, "routed_experts": "AAAA"}
    reader.read(chunk)
    assert reader.routed == RoutedReply("AAAA", None, 1)

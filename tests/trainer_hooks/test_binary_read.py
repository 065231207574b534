"""Binary arrays at the trainer: views of one buffer, broken bodies told apart, versions as runs."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_hooks.builders import make_segment, make_template
from trainer_hooks.client import ControlClient
from trainer_hooks.control_errors import ControlReplyError
from trainer_hooks.safetensors_view import view_tensors
from trainer_hooks.slime.samples import expand_segments_to_samples
from trainer_hooks.token_versions import TokenVersions
from trainer_hooks.trajectory_body import FORMAT, SAFETENSORS, read_body

RUNS = st.lists(st.tuples(st.sampled_from(["-1", "1", "2"]), st.integers(0, 3)), max_size=8)


def framed(header: dict[str, Any] | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def body_of(count: int) -> bytes:
    """A reply with one segment of so many tokens, the second half of them trained."""
    mask = np.arange(count) >= count // 2
    versions = {"length": count, "spans": [{"start": count // 2, "end": count, "version": "7"}]}
    segment = json.dumps({**make_segment("01"), "full_versions": versions})
    arrays = {
        "0.tokens": ("I32", np.arange(count, dtype="<i4")),
        "0.full_logprobs": ("F32", np.where(mask, -0.5, 0.0).astype("<f4")),
        "0.full_loss_mask": ("BOOL", mask),
        "0.segment": ("U8", np.frombuffer(segment.encode(), np.uint8)),
    }
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "reply": '{"success":true,"drained":false}'}}
    end = 0
    for name, (dtype, array) in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [start, end]}
    return framed(header, b"".join(array.tobytes() for _, array in arrays.values()))


class Chunks(httpx.SyncByteStream):
    def __init__(self, body: bytes) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, len(self._body), 2**16):
            yield self._body[at : at + 2**16]


def read_with_client(body: bytes, **headers: str) -> Any:
    def answer(_: httpx.Request) -> httpx.Response:
        named = {"content-type": SAFETENSORS, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return httpx.Response(200, stream=Chunks(body), headers=named)

    with ControlClient("http://sidecar", transport=httpx.MockTransport(answer)) as client:
        return client.read_trajectory(session_id="s")


def test_a_large_reply_is_in_memory_once() -> None:
    body = body_of(2_000_000)
    tracemalloc.start()
    try:
        read = read_with_client(body, content_length=str(len(body)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    [segment] = read["data"]
    assert segment["tokens"].sum() == 1_999_999 * 1_000_000
    assert peak < 1.1 * len(body), f"{peak / len(body):.2f} times the body"


def test_a_reply_of_unknown_length_is_read_too() -> None:
    [segment] = read_with_client(body_of(100))["data"]
    assert len(segment["tokens"]) == 100 and segment["full_versions"][-1] == "7"


def test_arrays_make_samples_as_lists_do() -> None:
    [segment] = read_body(memoryview(body_of(50)))["data"]
    plain = {
        **segment,
        **{name: segment[name].tolist() for name in ("tokens", "full_logprobs")},
        "full_loss_mask": segment["full_loss_mask"].astype(int).tolist(),
        "full_versions": list(segment["full_versions"]),
    }
    from_arrays = expand_segments_to_samples(make_template(), [segment])
    assert from_arrays == expand_segments_to_samples(make_template(), [plain])
    [sample] = from_arrays
    assert sample.loss_mask == [1] * 25 and sample.metadata["full_versions"] == ["-1"] * 25 + ["7"] * 25
    assert json.dumps([sample.tokens, sample.loss_mask, sample.rollout_log_probs, sample.metadata["full_versions"]])


@pytest.mark.parametrize("missing", [1, 100, 10_000])
def test_a_body_that_is_cut_off_says_how_much_is_missing(missing: int) -> None:
    body = body_of(5_000)
    with pytest.raises(ControlReplyError, match=f"cut off.*{missing} bytes of it are missing") as caught:
        read_with_client(body[:-missing], content_length=str(len(body)))
    assert caught.value.code == "reply_cut_off"


BROKEN = {
    "empty": (b"", "does not fit"),
    "shorter than its length": (b"\x05\x00", "does not fit"),
    "header too long": ((10**9).to_bytes(8, "little") + b"{}", "does not fit"),
    "header no JSON": (framed(b"{nope"), "header cannot be read"),
    "header no object": (framed(b"[1]"), "header cannot be read"),
    "unknown type": (framed({"a": {"dtype": "F8", "shape": [1], "data_offsets": [0, 1]}}, b"x"), "F8"),
    "wrong size": (framed({"a": {"dtype": "I32", "shape": [2], "data_offsets": [0, 4]}}, b"xxxx"), "needs 8 bytes"),
    "beyond the end": (framed({"a": {"dtype": "U8", "shape": [5], "data_offsets": [0, 5]}}, b"xxxx"), "its place"),
    "data left over": (framed({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"xx"), "body has 2"),
}


@pytest.mark.parametrize(("body", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_body_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        view_tensors(memoryview(body))
    with pytest.raises(ControlReplyError, match="cannot be read"):
        read_with_client(body)


def test_a_layout_of_the_future_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="tito-trajectory-9"):
        read_body(memoryview(framed({"__metadata__": {"format": "tito-trajectory-9"}})))


# Versions.


@given(RUNS, st.slices(12))
def test_runs_are_the_list_that_they_stand_for(runs: list[tuple[str, int]], part: slice) -> None:
    plain = [version for version, length in runs for _ in range(length)]
    versions = TokenVersions(runs)
    assert versions == plain and plain == versions and list(versions) == plain and len(versions) == len(plain)
    assert [versions[at] for at in range(-len(plain), len(plain))] == plain * 2
    assert versions[part] == plain[part]
    assert TokenVersions.of(plain).runs == versions.runs
    assert TokenVersions.from_spans(len(plain), versions.spans) == plain
    assert versions.mask("1").tolist() == [version == "1" for version in plain]
    odd = np.arange(len(plain)) % 2 == 1
    assert versions.among(odd) == list(dict.fromkeys(plain[1::2]))
    assert versions != [*plain, "1"] and versions != "x"


def test_a_token_beyond_the_end_and_spans_that_overlap_are_errors() -> None:
    with pytest.raises(IndexError):
        TokenVersions([("1", 2)])[2]
    with pytest.raises(ValueError, match="does not follow 2"):
        spans = [{"start": 0, "end": 2, "version": "1"}, {"start": 1, "end": 3, "version": "2"}]
        TokenVersions.from_spans(3, spans)

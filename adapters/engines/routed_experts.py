"""SGLang's routed experts on the wire: `meta_info.routed_experts` of a reply's last chunk, and their shape.

SGLang 0.5.23 sends base64 of a flat little-endian int32 array, shape [rows, layers, topk], which tells neither
layers nor topk; rows are `[routed_experts_start_len, tokens - 1)`. Later servers may name another type in
`routed_experts_dtype`. Without `--enable-return-routed-experts` the field is silently absent. Pure; a large reply
is decoded in slices, so that its caller can let others run in between.
"""

from __future__ import annotations

import binascii
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

Experts = npt.NDArray[Any]
"""Ids, uint8 or uint16, shape [rows, layers, topk]: as narrow as they fit, since they are most of a trajectory."""

UNRECORDED = 255
"""What experts show that a capture left out (fused shared experts in some builds): uint8's last value."""

_WIRE: dict[str, np.dtype[Any]] = {"int32": np.dtype("<i4"), "uint16": np.dtype("<u2"), "uint8": np.dtype("u1")}
_SLICE = 2**18
"""Characters decoded at once (about a millisecond); a multiple of 16, so that a slice is whole numbers."""
_IDS = 2**16
_FIELD = b'"routed_experts":"'
"""A quote within a string of JSON has a backslash before it, so this is the field wherever it stands."""
_LARGE = 2**16
_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")


class RoutingError(Exception):
    """The rows cannot be what the model did; the text says why."""


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Of a model: its layers (dense ones count), experts per token, and experts in all if that is known."""

    layers: int
    topk: int
    experts: int | None = None

    @property
    def limit(self) -> int:
        """Ids are below it."""
        return self.experts or _IDS


@dataclass(frozen=True, slots=True)
class RoutedReply:
    """What one call's last chunk says of its rows: the field, its type, and the tokens that the call sampled."""

    payload: object
    wire: object
    completion_tokens: int


def load_event(data: bytes) -> Any:
    """The JSON of one event. Large `routed_experts` stay bytes: as a string of JSON they would hold up everybody
    for longer than all else of a reply. Raises `orjson.JSONDecodeError`."""
    start = data.find(_FIELD) + len(_FIELD) if len(data) > _LARGE else -1
    end = data.find(b'"', start) if start >= len(_FIELD) else -1
    if end - start < _LARGE // 2:
        return orjson.loads(data)
    parsed = orjson.loads(data[:start] + data[end:])
    meta = parsed.get("meta_info") if isinstance(parsed, dict) else None
    if not isinstance(meta, dict) or meta.get("routed_experts") != "":
        return orjson.loads(data)
    meta["routed_experts"] = data[start:end]
    return parsed


def routed_reply(meta: Mapping[str, Any], sampled: int) -> RoutedReply | None:
    """The rows in a chunk's `meta_info`, not decoded; None where it has none. `sampled` counts the call's ids where
    the engine does not."""
    if meta.get("routed_experts") is None:
        return None
    total = meta.get("completion_tokens")
    return RoutedReply(
        meta["routed_experts"], meta.get("routed_experts_dtype"), total if isinstance(total, int) else sampled
    )


def expert_shape(config: Mapping[str, Any]) -> ExpertShape | None:
    """The shape that a model's config.json gives; None for a model without experts.

    SGLang 0.5.23 sizes its rows by the text model's `num_hidden_layers` and `num_experts_per_tok`."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    layers, topk = text.get("num_hidden_layers"), text.get("num_experts_per_tok")
    if not (isinstance(layers, int) and isinstance(topk, int) and layers > 0 and topk > 0):
        return None
    experts = next((text[name] for name in _COUNTS if isinstance(text.get(name), int)), None)
    return ExpertShape(layers, topk, experts)


def decode(payload: object, shape: ExpertShape, wire: object = None) -> Generator[None, None, Experts]:
    """Rows of one reply, shape [rows, layers, topk], as the generator's value; it pauses between slices.

    `wire` is `routed_experts_dtype`. Raises `RoutingError` for what is no base64 of whole rows, for an id outside
    the model's experts (or outside uint16), and for experts that the engine did not record."""
    kind: np.dtype[Any] | None = _WIRE.get(str(wire or "int32"))
    if kind is None:
        raise RoutingError(f"routed_experts_dtype is {wire!r}; known are {', '.join(_WIRE)}")
    if not isinstance(payload, str | bytes) or len(payload) % 4:
        raise RoutingError(f"routed_experts is {type(payload).__name__} and no whole base64 text")
    padding = payload[-2:].count("=") if isinstance(payload, str) else payload[-2:].count(b"=")
    size = len(payload) // 4 * 3 - padding
    row = shape.layers * shape.topk
    if size % (row * kind.itemsize):
        raise RoutingError(
            f"routed_experts holds {size} bytes, which are no whole rows of {shape.layers} layers x {shape.topk} "
            f"experts as {kind.name}"
        )
    ids = np.empty(size // kind.itemsize, np.uint8 if shape.limit <= 256 else np.uint16)
    largest = at = 0
    for start in range(0, len(payload), _SLICE):
        piece = _slice(payload[start : start + _SLICE], kind)
        if at + len(piece) < len(ids) and len(piece) * kind.itemsize * 4 != _SLICE * 3:
            raise RoutingError("routed_experts is no base64: padding in the middle")
        if len(piece):
            low, high = int(piece.min()), int(piece.max())
            if low < 0 or high >= shape.limit:
                raise RoutingError(
                    f"routed_experts holds expert {low if low < 0 else high}; ids are 0 to {shape.limit - 1}"
                )
            largest = max(largest, high)
        ids[at : at + len(piece)] = piece
        at += len(piece)
        yield
    rows = (ids.astype(np.uint8, copy=False) if largest < 256 else ids).reshape(-1, shape.layers, shape.topk)
    if largest >= UNRECORDED:
        _check_recorded(rows)
    return rows


def _slice(text: str | bytes, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    try:
        return np.frombuffer(binascii.a2b_base64(text, strict_mode=True), kind)
    except ValueError as error:  # also of characters beyond ASCII, and of a slice that holds no whole numbers
        raise RoutingError(f"routed_experts is no base64: {error}") from error


def _check_recorded(rows: Experts) -> None:
    """255 is an expert's id where there are that many, but nothing is chosen twice for one token."""
    if ((rows == UNRECORDED).sum(axis=2) > 1).any():
        raise RoutingError(
            f"routed_experts holds {UNRECORDED} more than once for one token and layer: the engine recorded nothing"
        )

"""Routing replay: expert rows of a sample, checked before slime replays them.

Row i holds the experts that processed token i; the last token was never fed back, so a sample of n tokens
has n - 1 rows. Numpy only: slime turns arrays into tensors itself. Pure functions, nothing is modified.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer_hooks.packed_array import unpack
from trainer_hooks.slime.errors import ConversionError, SegmentError, SettingError
from trainer_hooks.slime.settings import arg

Experts = npt.NDArray[np.int32]


def replay_enabled(args: Any) -> bool:
    """Whether slime replays routing (`--use-rollout-routing-replay`)."""
    return bool(arg(args, "use_rollout_routing_replay", False))


def segment_experts(value: Any, *, full_length: int, kept: int, trains: bool, args: Any) -> Experts | None:
    """Expert rows for a segment of `full_length` tokens of which `kept` remain: int32 [kept - 1, layers, topk].

    `value` is an array, nested lists, or the object in which the control plane packs an array into JSON.
    None where there are none, or where `args` says that slime does not replay. A segment of which nothing
    `trains` may lack them under replay (an anchor for whose steps the engine gave no rows): placeholders stand
    in, since they change no gradient. Raises `SegmentError` on another shape, and where replay is on and a
    trained segment has none.
    """
    if value is None:
        if replay_enabled(args) and not trains:
            return _placeholders(kept - 1, args)
        if replay_enabled(args):
            raise SegmentError(
                "routed_experts is missing but use_rollout_routing_replay is set; start the sidecar with "
                "--use-rollout-routing-replay"
            )
        return None
    if not arg(args, "use_rollout_routing_replay", True):
        return None
    try:
        rows = unpack(value) if isinstance(value, Mapping) else np.asarray(value)
    except ValueError as error:  # lists of unequal length
        raise SegmentError(f"routed_experts is not a regular array: {error}") from error
    if rows.dtype.kind not in "iu":
        raise SegmentError(f"routed_experts holds {rows.dtype} values; expert ids are integers")
    layers, topk = arg(args, "num_layers"), arg(args, "moe_router_topk")
    expected = (full_length - 1, layers, topk)
    if rows.ndim != 3 or any(e is not None and r != e for r, e in zip(rows.shape, expected, strict=True)):
        raise SegmentError(
            f"routed_experts has shape {rows.shape}; expected [len(tokens) - 1, layers, topk] = {expected}"
        )
    return np.ascontiguousarray(rows[: kept - 1], dtype=np.int32)


def dead_experts(args: Any) -> Experts | None:
    """Rows of the two-token placeholder: int32 [1, layers, topk], each `arange(topk)`; None without replay.

    Not zeros: slime takes a layer of zeros for a broken capture and refuses the batch.
    """
    return _placeholders(1, args) if replay_enabled(args) else None


def _placeholders(count: int, args: Any) -> Experts:
    layers, topk = arg(args, "num_layers"), arg(args, "moe_router_topk")
    if layers is None or topk is None:
        raise SettingError(
            f"num_layers is {layers!r} and moe_router_topk is {topk!r} while use_rollout_routing_replay is "
            "set; both must be on args"
        )
    return np.tile(np.arange(topk, dtype=np.int32), (count, int(layers), 1))


def check_replay_rows(value: Any, *, token_count: int, position: int, args: Any) -> None:
    """Refuse what slime's replay would refuse or misread, naming the sample. Raises `ConversionError`."""
    rows = np.asarray(value)
    expected = (token_count - 1, int(args.num_layers), int(args.moe_router_topk))
    if rows.shape != expected:
        raise ConversionError(
            f"samples[{position}].rollout_routed_experts has shape {rows.shape}; expected {expected}"
        )
    if expected[2] == 1:
        return  # expert 0 may then be a real choice on every token
    used = rows.any(axis=(0, 2))
    silent = [layer for layer in _moe_layers(args) if not used[layer]]
    if silent:
        raise ConversionError(
            f"samples[{position}].rollout_routed_experts is all zero in MoE layers {silent}; the engine did "
            "not capture them (pipeline stages?), and replaying expert 0 everywhere would be wrong"
        )


def _moe_layers(args: Any) -> list[int]:
    layers = range(int(args.num_layers))
    frequency = arg(args, "moe_layer_freq")
    if not isinstance(frequency, (list, tuple)):
        return list(layers)
    return [layer for layer in layers if int(frequency[layer])]

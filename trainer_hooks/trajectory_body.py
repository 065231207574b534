"""The body of a `/trajectory/read` reply with binary arrays, as segments whose arrays are views of it.

Pure; safe everywhere. The arrays are read-only and keep the body's memory alive.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer_hooks.safetensors_view import view_tensors
from trainer_hooks.token_versions import TokenVersions

FORMAT = "tito-trajectory-1"
SAFETENSORS = "application/vnd.safetensors"
"""The content type."""


def read_body(body: memoryview) -> dict[str, Any]:
    """The reply, with `data` as the JSON reply has it, except that `tokens` (int32), `full_loss_mask` (bool),
    `full_logprobs` (float32) and `routed_experts` are arrays and `full_versions` is a `TokenVersions`.

    Raises `ValueError` that says what is wrong with the body."""
    metadata, tensors = view_tensors(body)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"the body has format {metadata.get('format')!r}; this client reads {FORMAT!r}")
    parts: dict[int, dict[str, npt.NDArray[Any]]] = {}
    for name, tensor in tensors.items():
        index, _, field = name.partition(".")
        parts.setdefault(int(index), {})[field] = tensor
    reply: dict[str, Any] = json.loads(metadata["reply"])
    reply["data"] = [_segment(parts[index]) for index in sorted(parts)]
    return reply


def _segment(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    segment: dict[str, Any] = json.loads(np.asarray(arrays.pop("segment"), np.uint8).tobytes())
    versions = segment["full_versions"]
    return {**segment, **arrays, "full_versions": TokenVersions.from_spans(versions["length"], versions["spans"])}

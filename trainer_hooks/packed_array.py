"""Arrays that the control plane sends inside JSON as `{"dtype", "shape", "data"}`: base64 of their bytes.

Expert ids of routing replay are too many for JSON numbers. Pure; safe everywhere.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_TYPES = {"uint8": "u1", "uint16": "<u2", "int32": "<i4"}


def unpack(value: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The array, read-only. Raises `ValueError` that says what is wrong with the object."""
    kind, shape, data = value.get("dtype"), value.get("shape"), value.get("data")
    if kind not in _TYPES:
        raise ValueError(f"dtype is {kind!r}; known are {', '.join(_TYPES)}")
    if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"shape is {shape!r}; it must be a list of whole numbers")
    if not isinstance(data, str):
        raise ValueError(f"data is {type(data).__name__}; it must be base64 text")
    try:
        raw = binascii.a2b_base64(data, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"data is no base64: {error}") from error
    array = np.frombuffer(raw, _TYPES[kind]) if len(raw) % np.dtype(_TYPES[kind]).itemsize == 0 else None
    if array is None or array.size != math.prod(shape):
        raise ValueError(f"data holds {len(raw)} bytes, which are no {kind} of shape {shape}")
    return array.reshape(shape)

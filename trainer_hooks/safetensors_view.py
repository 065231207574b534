"""A safetensors body as numpy arrays that are views of it: nothing is copied.

The format is 8 bytes with the length of a JSON header, the header, and the tensors one after the other. It is read
here because the library's `load` copies every tensor, and this is all there is to it. Pure; safe everywhere.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt

_TYPES = {
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F32": "<f4",
    "F64": "<f8",
    "BOOL": "?",
}
_LENGTH = 8


def view_tensors(body: memoryview) -> tuple[dict[str, str], dict[str, npt.NDArray[Any]]]:
    """The header's metadata, and the tensors by name: read-only arrays in the memory of `body`.

    Raises `ValueError` that says what is wrong with the body."""
    body = body.toreadonly().cast("B")
    length = int.from_bytes(body[:_LENGTH], "little") if len(body) >= _LENGTH else len(body)
    if _LENGTH + length > len(body):
        raise ValueError(f"a header of {length} bytes does not fit into a body of {len(body)} bytes")
    try:
        header = json.loads(bytes(body[_LENGTH : _LENGTH + length]))
        metadata = header.pop("__metadata__", {})
        places = {name: (_TYPES[one["dtype"]], one["shape"], *one["data_offsets"]) for name, one in header.items()}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise ValueError(f"the header cannot be read: {error!r}") from error
    data = body[_LENGTH + length :]
    tensors = {name: _tensor(data, name, *place) for name, place in places.items()}
    used = sum(tensor.nbytes for tensor in tensors.values())
    if used != len(data):
        raise ValueError(f"the tensors have {used} bytes and the body has {len(data)}")
    return metadata, tensors


def _tensor(data: memoryview, name: str, dtype: str, shape: list[int], start: int, end: int) -> npt.NDArray[Any]:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if not 0 <= start <= end <= len(data) or end - start != size:
        raise ValueError(
            f"tensor {name} of shape {shape} needs {size} bytes, and [{start}, {end}) of {len(data)} is its place"
        )
    return np.frombuffer(data[start:end], dtype).reshape(shape)

"""Records to table rows and back, without loss.

Promise: pure functions; `x_record(values of x_row)` equals the record it came from. A value that would not come
back as it was raises `ValueError` or `TypeError` before anything is written. Safe from any task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from sidecar.store.checksum import blob_checksum, check_step, step_checksum
from sidecar.store.packed import Packer
from sidecar.store.protocol import PauseRow, SessionRow
from sidecar.tito.records import BreakReason, Forgiven, RoutedRows, StepRecord, VersionSpan

Row = dict[str, Any]
"""Column name -> value, as bound to a statement."""

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


def session_row(record: SessionRow) -> Row:
    """The row of table `session`. Raises `TypeError` for what JSON cannot hold."""
    row = {
        "session_id": record.session_id,
        "instance_id": record.instance_id,
        "run_id": record.run_id,
        "metadata": _to_json(record.metadata),
        "sampling": _to_json(record.sampling),
        "state": record.state,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "finalization": None if record.finalization is None else _to_json(record.finalization),
        "drained_at": record.drained_at,
    }
    return _checked(row)


def session_record(row: Mapping[str, Any]) -> SessionRow:
    """The session of a row of table `session`."""
    finalization = row["finalization"]
    return SessionRow(
        **{
            **row,
            "metadata": orjson.loads(row["metadata"]),
            "sampling": orjson.loads(row["sampling"]),
            "finalization": None if finalization is None else orjson.loads(finalization),
        }
    )


def step_row(record: StepRecord, packer: Packer) -> Row:
    """The row of table `step`. Raises `ValueError` for a wrong array, `TypeError` for what JSON cannot hold."""
    reason = record.break_reason
    row = {
        "session_id": record.session_id,
        "step_id": record.step_id,
        "begun": record.begun,
        "sequence": record.sequence,
        "parent_id": record.parent_id,
        "segment_reason": record.segment_reason,
        "state": record.state,
        "delivered": record.delivered,
        "finish_reason": record.finish_reason,
        "stop_id": record.stop_id,
        "message_count": record.message_count,
        "retry_count": record.retry_count,
        "untrainable": record.untrainable,
        "superseded_by": record.superseded_by,
        "routed_rows": None if record.routed_rows is None else _to_json(astuple(record.routed_rows)),
        "created_at": record.created_at,
        "prompt_chain": record.prompt_chain,
        "prompt_exact_chain": record.prompt_exact_chain,
        "chain": record.chain,
        "exact_chain": record.exact_chain,
        "system_hash": record.system_hash,
        "tools_hash": record.tools_hash,
        "body_hash": record.body_hash,
        "template_sha256": record.template_sha256,
        "tokenizer_sha256": record.tokenizer_sha256,
        "tokenizer": record.tokenizer,
        "call_id": record.call_id,
        "replaced": _to_json(record.replaced),
        "template_kwargs": _to_json(record.template_kwargs),
        "version_spans": _to_json([(span.start, span.end, span.version) for span in record.version_spans]),
        "sampling": _to_json(record.sampling),
        "forgiven": _to_json([(item.message_index, item.field, item.kind) for item in record.forgiven]),
        "break_reason": None
        if reason is None
        else _to_json((reason.segment_reason, reason.message_index, reason.field)),
        "extra": _to_json(record.extra),
        "message_hashes": _pack_keys(record.message_hashes),
        "prefix": packer.pack(record.prefix),
        "reply": packer.pack(record.reply),
        "context_ids": packer.pack(_to_bytes("context_ids", record.context_ids, _INT32)),
        "output_ids": packer.pack(_to_bytes("output_ids", record.output_ids, _INT32)),
        "output_logprobs": _to_bytes("output_logprobs", record.output_logprobs, _FLOAT32),
    }
    row["checksum"] = step_checksum(row)
    return _checked(row)


def step_record(row: Mapping[str, Any], packer: Packer) -> StepRecord:
    """The step of a row of table `step`. Its arrays are read-only views of bytes. Raises `ValueError` for a row
    that is not as it was stored."""
    row = check_step(row)
    reason, routed = row["break_reason"], row.get("routed_rows")
    return StepRecord(
        **{
            **row,
            "routed_rows": None if routed is None else RoutedRows(*orjson.loads(routed)),
            "replaced": tuple(orjson.loads(row["replaced"])),
            "template_kwargs": orjson.loads(row["template_kwargs"]),
            "version_spans": tuple(VersionSpan(*span) for span in orjson.loads(row["version_spans"])),
            "sampling": orjson.loads(row["sampling"]),
            "forgiven": tuple(Forgiven(*item) for item in orjson.loads(row["forgiven"])),
            "break_reason": None if reason is None else BreakReason(*orjson.loads(reason)),
            "extra": orjson.loads(row["extra"]),
            "message_hashes": tuple(_unpack_keys(row["message_hashes"])),
            "prefix": packer.unpack(row["prefix"]),
            "reply": packer.unpack(row["reply"]),
            "context_ids": _from_bytes(packer.unpack(row["context_ids"])),
            "output_ids": _from_bytes(packer.unpack(row["output_ids"])),
            "output_logprobs": np.frombuffer(row["output_logprobs"], _FLOAT32).astype(np.float32, copy=False),
        }
    )


def blob_rows(session_id: str, blobs: Mapping[bytes, bytes], packer: Packer) -> list[Row]:
    """The rows of table `blob`, one for each key."""
    packed = {key: packer.pack(data) for key, data in blobs.items()}
    return [
        {"session_id": session_id, "key": key, "data": data, "checksum": blob_checksum(key, data)}
        for key, data in packed.items()
    ]


def pause_row(record: PauseRow) -> Row:
    """The row of table `pause`."""
    row = {
        "pause_id": record.pause_id,
        "scope": record.scope,
        "mode": record.mode,
        "reason": record.reason,
        "lease_expires_at": record.lease_expires_at,
        "sidecar_id": record.sidecar_id,
    }
    return _checked(row)


def pause_record(row: Mapping[str, Any]) -> PauseRow:
    """The pause of a row of table `pause`."""
    return PauseRow(**row)


def _checked(row: Row) -> Row:
    """The row, if every database can keep it. Raises `ValueError`: PostgreSQL has no text with a NUL character, and
    SQLite keeps a NaN as NULL."""
    for name, value in row.items():
        if isinstance(value, str) and "\0" in value:
            raise ValueError(f"{name} holds a NUL character, which no database keeps in a text; leave it out")
        if isinstance(value, float) and value != value:
            raise ValueError(f"{name} is not a number; give a time in Unix seconds")
    return row


def _to_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _to_bytes(name: str, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    """Bytes of a vector. Another width or kind of number is refused: converting could change values."""
    if array.ndim != 1 or array.dtype.kind != dtype.kind or array.dtype.itemsize != dtype.itemsize:
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}; give one dimension of {dtype.name}")
    return array.astype(dtype, copy=False).tobytes()


def _from_bytes(data: bytes) -> npt.NDArray[np.int32]:
    return np.frombuffer(data, _INT32).astype(np.int32, copy=False)


def _pack_keys(keys: Sequence[bytes]) -> bytes:
    """Keys one after the other, each behind one byte with its length."""
    if any(len(key) > 255 for key in keys):
        raise ValueError("message_hashes holds a key of more than 255 bytes; use the hash, not the message")
    return b"".join([bytes((len(key),)) + key for key in keys])


def _unpack_keys(packed: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(packed):
        end = at + 1 + packed[at]
        yield packed[at + 1 : end]
        at = end

"""A checksum in each row of steps and blobs, so that damaged bytes are an error and never other tokens.

SQLite checks the structure of its pages, not what is in them, and only packed values carry a checksum of their
own. Pure; safe from any task. CRC-32: the enemy is a disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

_STEP = (
    *("session_id", "step_id", "begun", "sequence", "parent_id", "segment_reason", "state", "finish_reason"),
    *("stop_id", "message_count", "retry_count", "untrainable", "superseded_by", "routed_rows"),
    *("prompt_chain", "prompt_exact_chain", "chain", "exact_chain", "system_hash", "tools_hash", "body_hash"),
    *("template_sha256", "tokenizer_sha256", "tokenizer", "call_id", "replaced", "template_kwargs"),
    *("version_spans", "sampling", "forgiven", "break_reason", "extra", "message_hashes", "prefix", "reply"),
    *("context_ids", "output_ids", "output_logprobs"),
)
"""Columns of a step as of schema 1.2 but `delivered`, which is changed in place; `created_at` comes apart. Never
changed: what is stored was computed over these, in this order."""

_ARRAYS = frozenset({"context_ids", "output_ids", "output_logprobs", "prefix", "reply", "message_hashes"})
_PLAIN = tuple(name for name in _STEP if name not in _ARRAYS)
_LONG = tuple(name for name in _STEP if name in _ARRAYS)


_REWRITTEN = ("state", "sequence", "superseded_by")
"""Columns of which one changes whenever a step is stored again."""


def step_checksum(row: Mapping[str, Any]) -> str:
    """Of a step's row, as it is stored: of all of it, and of what tells that it was stored again. A program that
    knows no checksums leaves the old one in a row that it stores again."""
    plain = [row[name] for name in _PLAIN]
    found = crc32(repr([*plain, float(row["created_at"])]).encode())  # a whole number comes back as a float
    for name in _LONG:
        found = crc32(row[name], crc32(len(row[name]).to_bytes(8), found))
    return f"{found:08x}-{crc32(repr([row[name] for name in _REWRITTEN]).encode()):08x}"


def check_step(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without its checksum. Raises `ValueError` if it is not as it was stored. Rows that a program from
    before schema 1.2 stored last are taken as they are."""
    values = dict(row)
    stored = values.pop("checksum", None)
    if stored is not None:
        found = step_checksum(values)
        if stored != found and stored[8:] == found[8:]:
            raise ValueError(f"step {values['step_id']!r} is damaged: its checksum does not match")
    return values


def blob_checksum(key: bytes, data: bytes) -> str:
    """Of a blob, as it is stored; blobs never change."""
    return f"{crc32(data, crc32(key)):08x}"


def check_blob(key: bytes, data: bytes, stored: str | None) -> bytes:
    """The data. Raises `ValueError` if it is not as it was stored."""
    if stored is not None and stored != blob_checksum(key, data):
        raise ValueError(f"blob {key.hex()} is damaged: its checksum does not match")
    return data

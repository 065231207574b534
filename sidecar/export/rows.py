"""A segment as a row: flat columns of one type each, so that any reader agrees on them.

Promise: nothing of what `/trajectory/read` sends is lost. What has no fixed type (messages, tools, label, reward,
`extra_info`) is JSON text in a column whose name says so. Text is never null (an absent id is empty): readers of
JSON lines take a column's type from the first rows, and fail later if all of those were null. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import orjson

Row = dict[str, Any]

COLUMNS = {
    "uid": "string",
    "session_id": "string",
    "trajectory_id": "string",
    "instance_id": "string",
    "run_id": "string",
    "finalization_id": "string",
    "revision": "string",
    "finalized": "bool",
    "segment_index": "int32",
    "segment_count": "int32",
    "is_anchor": "bool",
    "finish_reason": "string",
    "reward": "float64",
    "reward_json": "string",
    "label_json": "string",
    "timestamp": "float64",
    "tokens": "list<int32>",
    "full_loss_mask": "list<int8>",
    "full_logprobs": "list<float32>",
    "full_versions": "list<string>",
    "messages_json": "string",
    "tools_json": "string",
    "routed_experts_json": "string",
    "extra_info_json": "string",
}
"""Column -> its type. `reward` is there for convenience, where it is one number. `revision` tells apart what may be
stored under one session id, see `revision_key`."""

TYPED_COLUMNS = ("reward",)
"""Those that may be null: only in a format that knows types."""

KEY_COLUMNS = ("session_id", "revision", "segment_index")
"""By these a repeat knows which segments are there."""


def segment_row(
    head: Mapping[str, Any],
    *,
    arrays: Mapping[str, Any],
    messages: bytes,
    tools: bytes,
    experts: bytes,
    revision: str,
    finalization_id: str | None,
) -> Row:
    """The row of a segment: `head` is what `segment_head` says, `messages`, `tools` and `experts` are JSON.

    Of a session that is not finalized the uid also names the revision, since its segments will be others when it
    is."""
    extra, reward = head["extra_info"], head["reward"]
    return {
        "uid": head["uid"] if finalization_id is not None else f"{head['uid']}@{revision}",
        "session_id": head["session_id"],
        "trajectory_id": head["trajectory_id"],
        "instance_id": head["instance_id"] or "",
        "run_id": extra["run_id"] or "",
        "finalization_id": finalization_id or "",
        "revision": revision,
        "finalized": finalization_id is not None,
        "segment_index": head["segment_index"],
        "segment_count": head["segment_count"],
        "is_anchor": extra["is_anchor"],
        "finish_reason": head["finish_reason"],
        "reward": None if reward is None or isinstance(reward, Mapping) else float(reward),
        "reward_json": _json(reward),
        "label_json": _json(head["label"]),
        "timestamp": float(head["timestamp"]),
        **arrays,
        "messages_json": messages.decode(),
        "tools_json": tools.decode(),
        "routed_experts_json": experts.decode(),
        "extra_info_json": _json(extra),
    }


def revision_key(session_id: str, revision: str) -> bytes:
    """What is stored under a session id at one time: an id that is used again after its tombstone is gone, or an
    unfinished session that has grown, is another one. 16 bytes."""
    return blake2b(f"{session_id}\0{revision}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Known:
    """Segments that the target has. A few dozen bytes per session, however many segments."""

    def __init__(self) -> None:
        self._held: dict[bytes, int] = {}

    def add(self, session_id: str, revision: str, index: int) -> None:
        """Note a segment."""
        key = revision_key(session_id, revision)
        self._held[key] = self._held.get(key, 0) | 1 << index

    def missing(self, session_id: str, revision: str, count: int) -> list[int]:
        """Indices of the segments, of `count`, that the target lacks."""
        held = self._held.get(revision_key(session_id, revision), 0)
        return [index for index in range(count) if not held >> index & 1]


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()

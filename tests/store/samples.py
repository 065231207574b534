"""Records to store, and a comparison that looks into arrays."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from sidecar.store.protocol import PauseRow, SessionRow
from sidecar.tito.records import BreakReason, Forgiven, RoutedRows, StepRecord, VersionSpan


def session(session_id: str = "s1", **changes: Any) -> SessionRow:
    """A session with a value in every field."""
    values: dict[str, Any] = {
        "session_id": session_id,
        "instance_id": "task-7",
        "run_id": "run-1",
        "metadata": {"label": "naïve ✓", "nested": {"list": [1, 2.5, None, True]}},
        "sampling": {"temperature": 1.0, "max_new_tokens": 4096},
        "state": "open",
        "created_at": 1_700_000_000.123456,
        "updated_at": 1_700_000_001.5,
        "finalization": {"reward": 0.5, "segments": 2},
        "drained_at": 1_700_000_002.25,
    }
    return SessionRow(**(values | changes))


def step(session_id: str = "s1", step_id: str = "a", sequence: int | None = 0, **changes: Any) -> StepRecord:
    """A step with a value in every field."""
    values: dict[str, Any] = {
        "step_id": step_id,
        "session_id": session_id,
        "begun": 7,
        "sequence": sequence,
        "parent_id": "parent",
        "segment_reason": "tools_changed",
        "context_ids": np.array([1, 2, 151_643], dtype=np.int32),
        "output_ids": np.array([5, 2**31 - 1], dtype=np.int32),
        "output_logprobs": np.array([-0.1, -1e-30], dtype=np.float32),
        "version_spans": (VersionSpan(0, 1, "7"), VersionSpan(1, 2, "8")),
        "finish_reason": "stop",
        "stop_id": 151_645,
        "message_hashes": (b"0123456789abcdef", b"\x00" * 16),
        "reply": '{"role":"assistant","content":"é"}'.encode(),
        "prompt_chain": b"p" * 16,
        "prompt_exact_chain": b"\xff\x00" * 8,
        "chain": b"c" * 16,
        "exact_chain": b"\x00\xff" * 8,
        "message_count": 3,
        "system_hash": b"s" * 16,
        "tools_hash": b"t" * 16,
        "template_sha256": "ab" * 32,
        "tokenizer_sha256": "cd" * 32,
        "tokenizer": "models/é",
        "call_id": "call",
        "body_hash": b"b" * 32,
        "retry_count": 2,
        "sampling": {"temperature": 1.0, "stop": ["</a>"]},
        "state": "committed",
        "delivered": False,
        "untrainable": "version_unknown",
        "superseded_by": "other",
        "routed_rows": RoutedRows(3, 8, 48, 8, 2),
        "prefix": b'{"role":"assistant","content":"p"}',
        "replaced": ("x", "y"),
        "template_kwargs": {"enable_thinking": False},
        "forgiven": (Forgiven(2, "content", "whitespace"),),
        "break_reason": BreakReason("tools_changed", 4, "tools"),
        "created_at": 1_700_000_000.75,
        "extra": {"turn": "t-1"},
    }
    return StepRecord(**(values | changes))


def pause(pause_id: str = "p1", **changes: Any) -> PauseRow:
    """A pause with a value in every field."""
    values: dict[str, Any] = {
        "pause_id": pause_id,
        "scope": "session:s1",
        "mode": "abort",
        "reason": "weights",
        "lease_expires_at": 1_700_000_120.5,
        "sidecar_id": "0123abcd",
    }
    return PauseRow(**(values | changes))


def assert_same_step(found: StepRecord, expected: StepRecord) -> None:
    """Equal in every field; arrays in type, shape and bits, too."""
    for field in fields(StepRecord):
        left, right = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(right, np.ndarray):
            assert left.dtype == right.dtype, field.name
            assert left.shape == right.shape, field.name
            assert left.tobytes() == right.tobytes(), field.name
        else:
            assert left == right, field.name
            assert type(left) is type(right), field.name

"""How large a session is, in memory and in the store: counted as steps come, never by looking at all of them. Pure.

Both are estimates that err on the large side: tokens with their ids, logprobs and cached JSON, replies, messages
and rows of routing replay as they are before they are packed.
"""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.tito.records import StepRecord

_TOKEN_BYTES = 16
_STEP_BYTES = 2048
"""What a step takes besides its tokens and its reply."""


class SessionSize:
    """Bytes of one session; `stored_blobs` are those of its messages and rows that the store has already."""

    def __init__(self, stored_blobs: int) -> None:
        self.held = 0
        """In memory."""
        self.stored = stored_blobs
        """In the store."""
        self._tools: set[bytes] = set()

    def add(self, record: StepRecord, blobs: Mapping[bytes, bytes]) -> None:
        """A step that is in the trajectory now, with what it brought. Every step brings the list of tools; it is
        stored once."""
        tokens = len(record.context_ids) + len(record.output_ids)
        own = _STEP_BYTES + _TOKEN_BYTES * tokens + len(record.reply) + len(record.prefix)
        self.held += own
        self.stored += own + sum(len(data) for key, data in blobs.items() if key not in self._tools)
        if record.tools_hash is not None:
            self._tools.add(record.tools_hash)

"""What the writer of this process did since it started. One event loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WriteTotals:
    """`commits` transactions took `seconds` altogether and stored `writes`; `failed` ones stored nothing."""

    commits: int = 0
    writes: int = 0
    seconds: float = 0.0
    failed: int = 0
    waiting: int = 0
    """Writes in the queue now."""

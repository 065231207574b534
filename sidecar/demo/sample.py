"""A sample with the fields of slime 0.3.1's own, for a machine without slime.

In a training run the hooks get slime's `Sample`; they copy what they are given and import nothing of slime.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(Enum):
    """slime's states of a sample."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class DemoSample:
    """What slime's data source would hand to a generate function."""

    index: int
    group_index: int
    prompt: str
    rollout_id: int | None = None
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    rollout_routed_experts: Any = None
    rollout_top_p_token_ids: Any = None
    rollout_top_p_token_offsets: Any = None
    teacher_log_probs: Any = None
    weight_versions: list[str] = field(default_factory=list)
    reward: float | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    session_id: str | None = None
    spec_info: dict[str, Any] = field(default_factory=dict)
    prefix_cache_info: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As slime's `to_dict`: the status by its value."""
        return {**self.__dict__, "status": self.status.value}

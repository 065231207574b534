"""Why a pod is not injected: a reason from a short list (for metrics) and a sentence for the pod's author. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Reason = Literal[
    "annotation",
    "capability",
    "container",
    "engine_url",
    "host_network",
    "host_path",
    "host_pid",
    "malformed",
    "port",
    "privileged",
    "secret",
    "shared_processes",
    "uid_1337",
    "volume",
    "windows",
]
REASONS: tuple[Reason, ...] = get_args(Reason)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a pod; `text` names the field, its value and the remedy."""

    reason: Reason
    text: str


class RefusalError(Exception):
    """The pod cannot have a sidecar. `problems` has one entry or more, in the order of the pod's fields."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(problem.text for problem in problems))
        self.problems = problems

"""What a Job's and its pod's status say of the agent. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer_hooks.launchers.agent_task import AgentResult
from trainer_hooks.launchers.outcomes import result_of


@dataclass(frozen=True, slots=True)
class JobEnd:
    """A Job's final condition: `Complete`, or `Failed` with the controller's reason and words."""

    complete: bool
    reason: str
    message: str


def job_end(job: Mapping[str, Any]) -> JobEnd | None:
    """The final condition; None while the Job runs (`FailureTarget` and `SuccessCriteriaMet` are not final)."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            return JobEnd(
                condition["type"] == "Complete", condition.get("reason") or "", condition.get("message") or ""
            )
    return None


def newest_pod(pods: Mapping[str, Any]) -> dict[str, Any] | None:
    """The Job's pod out of a list; None where it is gone."""
    found = sorted(pods.get("items") or (), key=lambda pod: pod["metadata"].get("creationTimestamp") or "")
    return found[-1] if found else None


def agent_result(
    end: JobEnd, pod: Mapping[str, Any] | None, container: str, output: Mapping[str, str], args: Any
) -> AgentResult:
    """The agent's result: its container's exit code and termination message, unless the pod met a worse fate."""
    if end.reason == "DeadlineExceeded":
        return AgentResult("timeout", error=f"the Job's deadline passed: {end.message}", output=output)
    fate = _fate(pod)
    ended = _terminated(pod, container)
    if fate is None and ended is None and not end.complete:
        fate = f"the Job failed ({end.reason}: {end.message}) and its pod is gone"
    if fate is not None:
        return AgentResult("failed", error=fate, output=output)
    code = 0 if ended is None else int(ended.get("exitCode", 0))
    if ended is not None and ended.get("reason") == "OOMKilled":
        return AgentResult(
            "failed", error=f"container {container} was out of memory", exit_code=code, output=output
        )
    message = ((ended or {}).get("message") or "").strip()
    content = message.encode() if message.startswith("{") else None
    return result_of(content, code, output, args)


def _fate(pod: Mapping[str, Any] | None) -> str | None:
    """Why the pod ended although its agent had not: evicted, preempted, its node gone."""
    status = (pod or {}).get("status") or {}
    if status.get("reason"):
        return f"the pod ended: {status['reason']}: {status.get('message') or 'no more is told'}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f"the pod was disrupted: {condition.get('reason')}: {condition.get('message') or ''}"
    return None


def _terminated(pod: Mapping[str, Any] | None, container: str) -> Mapping[str, Any] | None:
    for status in ((pod or {}).get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == container:
            found: Mapping[str, Any] | None = (status.get("state") or {}).get("terminated")
            return found
    return None

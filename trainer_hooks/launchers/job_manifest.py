"""The Job of one agent: the user's template, filled in for one task.

Promises that the Job runs its pod once (a restarted agent would mix two runs in one session), ends by itself
after the time limit even if the trainer is gone, and has a name that follows from the session, so that creating it
again finds it. Reading the template is blocking; the rest is pure.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from trainer_hooks.launchers.agent_environment import model_environment, sample_environment
from trainer_hooks.launchers.agent_task import AgentTask, TaskError
from trainer_hooks.launchers.placeholders import as_text, fill_tree
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.settings import text_setting

SESSION_ANNOTATION = "tito.dev/session-id"
_BACKSTOP_SECONDS = 120
"""By how much the Job's own deadline is later than the launcher's, which collects logs before it deletes."""
_PROMPT_BYTES = 96 * 1024
"""An environment variable may have 128 KiB in Linux."""


def read_template(args: Any) -> dict[str, Any]:
    """The template named by `TITO_KUBERNETES_TEMPLATE`, JSON or YAML. Raises `SettingError`."""
    name = text_setting(args, "TITO_KUBERNETES_TEMPLATE")
    if name is None:
        raise SettingError("TITO_KUBERNETES_TEMPLATE is not set; name the file with the agents' Job")
    try:
        text = Path(name).read_text()
        template = json.loads(text) if name.endswith(".json") else _yaml(text)
    except (OSError, ValueError) as error:
        raise SettingError(f"TITO_KUBERNETES_TEMPLATE is {name!r}, which cannot be read: {error}") from error
    problem = _problem(template)
    if problem:
        raise SettingError(f"the Job template {name!r} {problem}")
    return dict(template)


def build_job(template: dict[str, Any], task: AgentTask, *, namespace: str, inject: bool) -> dict[str, Any]:
    """The Job to create. With `inject` the pod asks for the sidecar by label and annotations, and the webhook gives
    the agent its model; else its environment names the gateway. Raises `TaskError`."""
    job: dict[str, Any] = fill_tree(copy.deepcopy(template), task)
    metadata = job.setdefault("metadata", {})
    metadata.pop("generateName", None)
    metadata |= {"name": job_name(task.session_id), "namespace": namespace}
    spec = job["spec"]
    spec |= {
        "backoffLimit": 0,
        "completions": 1,
        "parallelism": 1,
        "activeDeadlineSeconds": math.ceil(task.timeout_seconds) + _BACKSTOP_SECONDS,
    }
    spec.setdefault("ttlSecondsAfterFinished", 3600)
    pod = spec["template"]
    pod["spec"]["restartPolicy"] = "Never"
    for part in (metadata, pod.setdefault("metadata", {})):
        labels, annotations = part.setdefault("labels", {}), part.setdefault("annotations", {})
        labels["app.kubernetes.io/managed-by"] = "tito-trainer-hooks"
        annotations |= {SESSION_ANNOTATION: task.session_id, "tito.dev/instance-id": task.instance_id}
    if inject:
        pod["metadata"]["labels"]["tito.dev/inject"] = "true"
    for container in agent_containers(job):
        path = container.setdefault("terminationMessagePath", "/dev/termination-log")
        _set_environment(container, _environment(task, path, inject))
    return job


def job_name(session_id: str) -> str:
    """The Job's name: a DNS label, one for each session."""
    return f"tito-{hashlib.sha256(session_id.encode()).hexdigest()[:32]}"


def agent_containers(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The containers that hold the agent: those in the pod's `tito.dev/containers`, else all. The first one's exit
    code and termination message are the agent's."""
    pod = job["spec"]["template"]
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    named = [name.strip() for name in str(annotations.get("tito.dev/containers", "")).split(",") if name.strip()]
    found = [one for one in pod["spec"]["containers"] if not named or one["name"] in named]
    if not found:
        raise SettingError(f"tito.dev/containers names {named}, which the Job template has no containers for")
    return found


def _environment(task: AgentTask, result_path: str, inject: bool) -> dict[str, str]:
    prompt = as_text(task.prompt)
    size = len(prompt.encode())
    if size > _PROMPT_BYTES:
        raise TaskError(f"the prompt has {size} bytes, more than an environment variable may ({_PROMPT_BYTES})")
    facts = {
        "TITO_SESSION_ID": task.session_id,
        "TITO_INSTANCE_ID": task.instance_id,
        "TITO_PROMPT": prompt,
        "TITO_RESULT_FILE": result_path,
    }
    return {**sample_environment(task), **facts, **({} if inject else model_environment(task))}


def _set_environment(container: dict[str, Any], values: dict[str, str]) -> None:
    kept = [one for one in container.get("env") or () if one.get("name") not in values]
    # A dollar sign starts a reference in Kubernetes' own syntax, and a prompt may hold one; two are one.
    ours = [{"name": name, "value": value.replace("$", "$$")} for name, value in values.items()]
    container["env"] = kept + ours


def _problem(template: Any) -> str | None:
    if not isinstance(template, dict):
        return f"holds a {type(template).__name__}; it must be one Job"
    if (template.get("apiVersion"), template.get("kind")) != ("batch/v1", "Job"):
        return f"is a {template.get('apiVersion')} {template.get('kind')}; it must be a batch/v1 Job"
    try:
        containers = template["spec"]["template"]["spec"]["containers"]
        names = [container["name"] for container in containers]
    except (KeyError, TypeError) as error:
        return f"has no spec.template.spec.containers with names ({error!r})"
    return None if names else "has no containers"


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise SettingError("a YAML template needs PyYAML; install it, or write the template as .json") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error

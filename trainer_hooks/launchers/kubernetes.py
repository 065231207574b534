"""The `kubernetes` launcher: the agent is a Job, made from a template, with the sidecar injected into its pod.

The session is opened at the gateway's replicas; the injected sidecar finds it in their common store, and the
trainer finalizes and reads it through the gateway, since the pod is gone by then. Promises that the Job is
deleted when `run` returns or raises, its logs collected before (`TITO_KUBERNETES_KEEP_JOBS=1` keeps finished ones
until their TTL). Settings: `TITO_KUBERNETES_TEMPLATE`, `_INJECT` (1), `_API`, `_TOKEN_FILE`, `_CA_FILE`,
`_NAMESPACE`, `_RETRY_SEC`, `_LOOK_SEC`. Any number may run in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from trainer_hooks.launchers.agent_task import AgentResult, AgentTask
from trainer_hooks.launchers.job_manifest import (
    SESSION_ANNOTATION,
    agent_containers,
    build_job,
    job_name,
    read_template,
)
from trainer_hooks.launchers.job_status import JobEnd, agent_result, job_end, newest_pod
from trainer_hooks.launchers.kubernetes_client import (
    KubernetesClient,
    KubernetesError,
    account_namespace,
    api_server,
)
from trainer_hooks.launchers.load import injects
from trainer_hooks.slime.errors import SettingError
from trainer_hooks.slime.settings import flag_setting, number_setting, text_setting
from trainer_hooks.uninterrupted import uninterrupted

logger = logging.getLogger(__name__)

_WATCH_SECONDS = 240
_LOG_BYTES = 2**20
_LOG_LINES = 5_000
_LONGEST_LOOK_SECONDS = 15.0


async def run(task: AgentTask) -> AgentResult:
    """Create the Job, wait for its end, collect. Raises `SettingError`, `TaskError`, `KubernetesError`."""
    server = api_server(task.args)
    template = read_template(task.args)
    own = (template.get("metadata") or {}).get("namespace")
    namespace = text_setting(task.args, "TITO_KUBERNETES_NAMESPACE") or own or account_namespace()
    if not namespace:
        raise SettingError("TITO_KUBERNETES_NAMESPACE is not set and the Job template names no namespace; set one")
    job = build_job(template, task, namespace=namespace, inject=injects(task.args))
    async with KubernetesClient(server) as client:
        return await _AgentJob(client, namespace, job, task).run()


class _AgentJob:
    """One Job in one namespace."""

    def __init__(self, client: KubernetesClient, namespace: str, job: dict[str, Any], task: AgentTask) -> None:
        self._client = client
        self._job = job
        self._task = task
        self._name = job_name(task.session_id)
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._is_foreign = False
        self._look_seconds = number_setting(task.args, "TITO_KUBERNETES_LOOK_SEC", 1.0)

    async def run(self) -> AgentResult:
        keep = False
        try:
            # To the end: a creation that is cancelled half-way may still succeed, behind the deletion.
            await uninterrupted(self._create())
            try:
                async with asyncio.timeout(self._task.timeout_seconds):
                    end = await self._finished()
            except TimeoutError:
                limit = f"{self._task.timeout_seconds:g} s (TITO_AGENT_TIMEOUT_SEC)"
                end = JobEnd(False, "DeadlineExceeded", f"it had not ended after {limit}")
            result = await self._collect(end)
            keep = flag_setting(self._task.args, "TITO_KUBERNETES_KEEP_JOBS", False)
            return result
        finally:
            if not keep and not self._is_foreign:
                await uninterrupted(self._delete())

    async def _create(self) -> None:
        try:
            await self._client.call("POST", self._jobs, body=self._job)
        except KubernetesError as error:
            if error.status != 409:
                raise
            if not await self._is_ours():
                self._is_foreign = True
                raise

    async def _is_ours(self) -> bool:
        """Whether the Job that is there already is this one: the reply to its creation was lost."""
        found = await self._client.call("GET", f"{self._jobs}/{self._name}")
        annotations = found["metadata"].get("annotations") or {}
        return bool(annotations.get(SESSION_ANNOTATION) == self._task.session_id)

    async def _finished(self) -> JobEnd:
        """Look, then watch for changes since; look again whenever the watch ends, breaks, or is too old (410)."""
        delay = self._look_seconds
        while True:
            try:
                job = await self._client.call("GET", f"{self._jobs}/{self._name}")
            except KubernetesError as error:
                if error.status == 404:
                    return JobEnd(False, "Deleted", "somebody deleted the Job")
                raise
            end = job_end(job)
            if end is not None:
                return end
            seen = 0
            try:
                async for event in self._events(job["metadata"]["resourceVersion"]):
                    seen += 1
                    if event.get("type") == "DELETED":
                        return JobEnd(False, "Deleted", "somebody deleted the Job")
                    if event.get("type") == "ERROR":
                        break
                    end = job_end(event["object"])
                    if end is not None:
                        return end
            except KubernetesError as error:
                logger.info("job=%s is looked at again: %s", self._name, error)
            delay = self._look_seconds if seen else min(2 * delay, _LONGEST_LOOK_SECONDS)
            await asyncio.sleep(delay)

    def _events(self, version: str) -> Any:
        params = {
            "fieldSelector": f"metadata.name={self._name}",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        return self._client.watch(self._jobs, params)

    async def _collect(self, end: JobEnd) -> AgentResult:
        container = agent_containers(self._job)[0]["name"]
        output: dict[str, str] = {}
        pod = None
        try:
            pod = newest_pod(
                await self._client.call("GET", self._pods, params={"labelSelector": f"job-name={self._name}"})
            )
        except KubernetesError as error:
            output["kubernetes"] = f"the pod could not be looked at: {error}"
        if pod is not None:
            for one in self._job["spec"]["template"]["spec"]["containers"]:
                output[one["name"]] = await self._logs(pod["metadata"]["name"], one["name"])
        return agent_result(end, pod, container, output, self._task.args)

    async def _logs(self, pod: str, container: str) -> str:
        params = {"container": container, "limitBytes": str(_LOG_BYTES), "tailLines": str(_LOG_LINES)}
        try:
            return await self._client.text(f"{self._pods}/{pod}/log", params)
        except KubernetesError as error:  # 400: it never started; 404: it is gone
            return f"[no log: {error}]"

    async def _delete(self) -> None:
        """Delete the Job and its pod; what cannot be deleted now ends at its own deadline."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        try:
            await self._client.call("DELETE", f"{self._jobs}/{self._name}", body=options)
        except KubernetesError as error:
            if error.status != 404:
                logger.error("job_not_deleted job=%s: %s; it ends at its own deadline", self._name, error)

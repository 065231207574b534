"""The kubernetes launcher in front of a stand-in API server over HTTP. No real API server was at hand."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.fake_sglang import Reply
from tests.support.running import Running
from tests.support.waiting import LIVENESS
from tests.trainer_hooks.dispatching import PLAIN_AGENT, SAMPLING, dispatch_args, task_sample
from tests.trainer_hooks.kubernetes_stand_in import TOKEN, Fault, KubernetesStandIn, kubernetes_stand_in, status
from tests.trainer_hooks.slime_stand_in import Sample, make_args
from trainer_hooks.launchers import kubernetes_client
from trainer_hooks.launchers.agent_task import AgentResult, AgentTask, TaskError
from trainer_hooks.launchers.job_manifest import build_job, job_name
from trainer_hooks.launchers.kubernetes import run
from trainer_hooks.launchers.kubernetes_client import KubernetesError
from trainer_hooks.slime.blackbox_dispatch import generate
from trainer_hooks.slime.errors import SettingError

BACKOFF = "BackoffLimitExceeded"
TEMPLATE = """
apiVersion: batch/v1
kind: Job
metadata:
  generateName: agent-
  labels: {team: coders}
spec:
  backoffLimit: 6
  template:
    metadata:
      annotations: {tito.dev/mode: base_url, tito.dev/containers: agent}
    spec:
      restartPolicy: OnFailure
      containers:
      - name: agent
        image: "{{metadata.image}}"
        command: [agent, --task, "$(TITO_PROMPT)"]
        env:
        - {name: OPENAI_BASE_URL, value: wrong}
        - {name: KEPT, value: "1"}
      - name: tools
        image: tools:1
"""


@pytest.fixture
async def server() -> AsyncIterator[KubernetesStandIn]:
    async with kubernetes_stand_in() as stand_in, asyncio.timeout(2 * LIVENESS):
        yield stand_in


def make_task(server: KubernetesStandIn | None, tmp_path: Path, **changes: Any) -> AgentTask:
    """A task of this launcher; other fields and settings by name."""
    fields = {name: changes.pop(name) for name in ("prompt", "metadata", "timeout_seconds") if name in changes}
    return AgentTask(
        session_id="s-1",
        instance_id="task-7",
        base_url="http://gateway/v1",
        anthropic_base_url="http://gateway",
        api_key="tito-key.mac",
        scratch=tmp_path,
        args=make_args(**(settings(server, tmp_path) | changes)),
        **({"prompt": "Do $(it).", "metadata": {"image": "img:1"}, "timeout_seconds": LIVENESS} | fields),
    )


def settings(server: KubernetesStandIn | None, tmp_path: Path) -> dict[str, Any]:
    """Settings of the launcher in front of `server`."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "job.yaml").write_text(TEMPLATE)
    return {
        "tito_launcher": "kubernetes",
        "tito_kubernetes_api": server.url if server else "http://127.0.0.1:9",
        "tito_kubernetes_token_file": str(tmp_path / "token"),
        "tito_kubernetes_template": str(tmp_path / "job.yaml"),
        "tito_kubernetes_namespace": "agents",
        "tito_kubernetes_look_sec": 0.01,
        "tito_kubernetes_retry_sec": 2,
    }


async def finished(
    server: KubernetesStandIn, task: AgentTask, kind: str, reason: str, **details: Any
) -> AgentResult:
    """The result of a run whose Job the controller finishes like this, while it is watched."""
    running = asyncio.create_task(run(task))
    name = await server.created()
    await server.until(lambda: server.watches)
    server.finish(name, kind, reason, **details)
    return await running


def test_a_job_runs_its_pod_once_and_asks_for_the_sidecar(tmp_path: Path) -> None:
    import yaml

    task = make_task(None, tmp_path)
    template = yaml.safe_load(TEMPLATE)
    job = build_job(template, task, namespace="agents", inject=True)
    assert template == yaml.safe_load(TEMPLATE), "the template itself is left alone"
    spec, pod = job["spec"], job["spec"]["template"]
    assert job["metadata"]["name"] == job_name("s-1") and "generateName" not in job["metadata"]
    assert (spec["backoffLimit"], spec["completions"], pod["spec"]["restartPolicy"]) == (0, 1, "Never")
    assert spec["activeDeadlineSeconds"] == LIVENESS + 120
    assert pod["metadata"]["labels"]["tito.dev/inject"] == "true"
    assert pod["metadata"]["annotations"]["tito.dev/session-id"] == "s-1"
    assert pod["metadata"]["annotations"]["tito.dev/mode"] == "base_url"
    agent, tools = pod["spec"]["containers"]
    assert agent["image"] == "img:1"
    env = {one["name"]: one["value"] for one in agent["env"]}
    assert env["TITO_PROMPT"] == "Do $$(it).", "Kubernetes would expand it"
    assert (env["OPENAI_BASE_URL"], env["KEPT"]) == ("wrong", "1"), "the webhook sets it"
    assert env["TITO_RESULT_FILE"] == agent["terminationMessagePath"] == "/dev/termination-log"
    assert "env" not in tools
    plain = build_job(template, task, namespace="agents", inject=False)["spec"]["template"]
    env = {one["name"]: one["value"] for one in plain["spec"]["containers"][0]["env"]}
    assert (env["OPENAI_BASE_URL"], env["OPENAI_API_KEY"]) == ("http://gateway/v1", "tito-key.mac")
    assert "tito.dev/inject" not in plain["metadata"]["labels"]


async def test_a_job_that_completes_is_collected_and_deleted(server: KubernetesStandIn, tmp_path: Path) -> None:
    task = make_task(server, tmp_path)
    name = job_name("s-1")
    server.logs = {(f"{name}-x", "agent"): "thinking\n", (f"{name}-x", "tools"): "served\n"}
    result = await finished(server, task, "Complete", "", message='{"reward": 0.5}')
    assert (result.outcome, result.reward, result.exit_code) == ("completed", 0.5, 0)
    assert result.output == {"agent": "thinking\n", "tools": "served\n"}
    assert server.jobs == {}
    [options] = server.deleted
    assert options["propagationPolicy"] == "Background"


@pytest.mark.parametrize(
    ("kind", "reason", "details", "outcome", "words"),
    [
        ("Failed", BACKOFF, {"exit_code": 3}, "failed", "exit code 3"),
        ("Failed", "DeadlineExceeded", {"exit_code": None}, "timeout", "deadline"),
        (
            "Failed",
            BACKOFF,
            {"exit_code": 137, "pod": {"reason": "Evicted", "message": "The node was low on resource: memory."}},
            "failed",
            "Evicted: The node was low",
        ),
        (
            "Failed",
            BACKOFF,
            {
                "exit_code": 143,
                "pod": {
                    "conditions": [
                        {
                            "type": "DisruptionTarget",
                            "status": "True",
                            "reason": "PreemptionByScheduler",
                            "message": "m",
                        }
                    ]
                },
            },
            "failed",
            "disrupted: PreemptionByScheduler",
        ),
        (
            "Failed",
            BACKOFF,
            {"exit_code": 137, "terminated": "OOMKilled"},
            "failed",
            "out of memory",
        ),
        ("Failed", BACKOFF, {"exit_code": None}, "failed", "its pod is gone"),
        (
            "Failed",
            BACKOFF,
            {"exit_code": 1, "message": '{"status": "turn_limit"}'},
            "turn_limit",
            None,
        ),
        ("Failed", BACKOFF, {"exit_code": 1, "message": "Traceback: boom"}, "failed", "exit code 1"),
        ("Complete", "", {"message": "{broken"}, "failed", "is no JSON"),
        ("Complete", "", {"message": "bye"}, "completed", None),
    ],
)
async def test_how_a_job_ended_becomes_the_agent_s_outcome(
    server: KubernetesStandIn, tmp_path: Path, kind: str, reason: str, details: Any, outcome: str, words: str | None
) -> None:
    result = await finished(server, make_task(server, tmp_path), kind, reason, **details)
    assert result.outcome == outcome
    assert (words in (result.error or "")) if words else result.error is None
    assert server.jobs == {}


async def test_context_overflow_is_read_from_the_logs(server: KubernetesStandIn, tmp_path: Path) -> None:
    server.logs = {(f"{job_name('s-1')}-x", "agent"): "This model's maximum context length is 60 tokens."}
    result = await finished(server, make_task(server, tmp_path), "Failed", BACKOFF, exit_code=1)
    assert result.outcome == "context_overflow"
    assert "waiting to start" in result.output["tools"]


async def test_conditions_that_are_not_final_do_not_end_the_wait(server: KubernetesStandIn, tmp_path: Path) -> None:
    running = asyncio.create_task(run(make_task(server, tmp_path)))
    name = await server.created()
    await server.until(lambda: server.watches)
    server.condition(name, "SuccessCriteriaMet")
    server.end_watches()
    await server.until(lambda: server.watches > 1)
    assert not running.done()
    server.finish(name, "Complete", "")
    assert (await running).outcome == "completed"


@pytest.mark.parametrize(
    "trouble",
    [
        [Fault("GET", "watch=1", 410)],
        [Fault("GET", "watch=1", 500), Fault("GET", "watch=1", 0, drop=True)],
        [Fault("GET", "jobs/tito", 503), Fault("GET", "jobs/tito", 429, {"retry-after": "0"})],
        [Fault("GET", "jobs/tito", 0, drop=True)],
        [Fault("POST", "jobs", 429, {"retry-after": "0"}), Fault("POST", "jobs", 500)],
        [Fault("POST", "jobs", 504, late=True)],
        [Fault("POST", "jobs", 0, late=True, drop=True)],
        [Fault("GET", "pods?", 502), Fault("GET", "/log", 503), Fault("DELETE", "jobs", 500)],
    ],
    ids=lambda faults: " ".join(f"{one.method}-{one.code}" for one in faults),
)
async def test_passing_trouble_of_the_api_server_is_waited_out(
    server: KubernetesStandIn, tmp_path: Path, trouble: list[Fault]
) -> None:
    server.faults = list(trouble)
    server.logs = {(f"{job_name('s-1')}-x", name): "said" for name in ("agent", "tools")}
    result = await finished(server, make_task(server, tmp_path, tito_kubernetes_retry_sec=20), "Complete", "")
    assert (result.outcome, result.output) == ("completed", {"agent": "said", "tools": "said"})
    assert server.faults == []
    assert server.jobs == {}


async def test_a_watch_whose_version_is_gone_starts_again_from_a_fresh_look(
    server: KubernetesStandIn, tmp_path: Path
) -> None:
    running = asyncio.create_task(run(make_task(server, tmp_path)))
    name = await server.created()
    await server.until(lambda: server.watches)
    looks = sum(call.startswith("GET") and call.endswith(name) for call in server.calls)
    server.end_watches(status(410, "Expired", "too old resource version: 1 (2)"))
    await server.until(lambda: server.watches > 1)
    assert sum(call.startswith("GET") and call.endswith(name) for call in server.calls) == looks + 1
    server.finish(name, "Complete", "")
    assert (await running).outcome == "completed"


async def test_a_job_of_the_same_name_that_is_not_ours_is_an_error_and_is_left_alone(
    server: KubernetesStandIn, tmp_path: Path
) -> None:
    name = job_name("s-1")
    server.jobs[name] = {"metadata": {"name": name, "annotations": {"tito.dev/session-id": "another"}}}
    with pytest.raises(KubernetesError, match="already exists"):
        await run(make_task(server, tmp_path))
    assert server.deleted == []


async def test_a_job_that_somebody_deletes_has_failed(server: KubernetesStandIn, tmp_path: Path) -> None:
    running = asyncio.create_task(run(make_task(server, tmp_path)))
    name = await server.created()
    await server.until(lambda: server.watches)
    server.pods.clear()
    server.remove(name)
    result = await running
    assert (result.outcome, "somebody deleted the Job" in (result.error or "")) == ("failed", True)


async def test_cancellation_deletes_the_job(server: KubernetesStandIn, tmp_path: Path) -> None:
    running = asyncio.create_task(run(make_task(server, tmp_path)))
    await server.created()
    await server.until(lambda: server.watches)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (server.jobs, len(server.deleted)) == ({}, 1)


async def test_a_job_whose_creation_is_cancelled_half_way_is_deleted_too(
    server: KubernetesStandIn, tmp_path: Path
) -> None:
    server.faults = [Fault("POST", "jobs", 503, {"retry-after": "0.2"})]
    running = asyncio.create_task(run(make_task(server, tmp_path)))
    await server.until(lambda: server.calls)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (server.jobs, len(server.deleted)) == ({}, 1)


async def test_the_time_limit_ends_the_job_after_its_logs_were_taken(
    server: KubernetesStandIn, tmp_path: Path
) -> None:
    server.logs = {(f"{job_name('s-1')}-x", "agent"): "still thinking"}
    result = await run(make_task(server, tmp_path, timeout_seconds=0.3))
    assert (result.outcome, result.output["agent"]) == ("timeout", "still thinking")
    assert server.jobs == {}


async def test_finished_jobs_are_kept_where_asked_and_cancelled_ones_are_not(
    server: KubernetesStandIn, tmp_path: Path
) -> None:
    task = make_task(server, tmp_path, tito_kubernetes_keep_jobs=True)
    await finished(server, task, "Complete", "")
    assert list(server.jobs) == [job_name("s-1")]


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"tito_kubernetes_token_file": "/none"}, SettingError, "which is no file"),
        ({"tito_kubernetes_api": "cluster:6443"}, SettingError, "must start with http"),
        ({"tito_kubernetes_api": None}, SettingError, "TITO_KUBERNETES_API is not set"),
        ({"tito_kubernetes_template": None}, SettingError, "TITO_KUBERNETES_TEMPLATE is not set"),
        ({"tito_kubernetes_namespace": None}, SettingError, "TITO_KUBERNETES_NAMESPACE is not set"),
        ({"metadata": {}}, TaskError, "metadata.image"),
        ({"prompt": "x" * 200_000}, TaskError, "more than an environment variable may"),
    ],
)
async def test_what_cannot_work_is_said_before_anything_is_created(
    server: KubernetesStandIn, tmp_path: Path, changes: Any, error: Any, text: str
) -> None:
    task = make_task(server, tmp_path, **changes)
    with pytest.raises(error) as caught:
        await run(task)
    assert text in str(caught.value)
    assert server.calls == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("- a", "holds a list"),
        ("{kind: Pod, apiVersion: v1}", "is a v1 Pod"),
        ("{kind: Job, apiVersion: batch/v1, spec: {}}", "has no spec.template"),
        ("a: [", "cannot be read"),
    ],
)
async def test_a_template_that_is_no_job_is_refused(
    server: KubernetesStandIn, tmp_path: Path, content: str, text: str
) -> None:
    task = make_task(server, tmp_path)
    (tmp_path / "job.yaml").write_text(content)
    with pytest.raises(SettingError, match=r"job\.yaml") as caught:
        await run(task)
    assert text in str(caught.value)


async def test_a_token_without_rights_is_a_wrong_setting(server: KubernetesStandIn, tmp_path: Path) -> None:
    task = make_task(server, tmp_path)
    (tmp_path / "token").write_text("stale")
    with pytest.raises(SettingError, match="TITO_KUBERNETES_TOKEN_FILE"):
        await run(task)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of 127.0.0.1 that is its own authority, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "server.pem").write_bytes(secret + signed.public_bytes(pem))
    (tmp_path / "ca.crt").write_bytes(signed.public_bytes(pem))
    return tmp_path / "server.pem"


async def test_in_a_pod_the_service_account_says_all(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with kubernetes_stand_in(tls) as server:
        host, port = server.url.removeprefix("https://").split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        monkeypatch.setattr(kubernetes_client, "_ACCOUNT", tmp_path)
        (tmp_path / "namespace").write_text("agents\n")
        names = ("api", "token_file", "namespace")
        unset: dict[str, Any] = {f"tito_kubernetes_{name}": None for name in names}
        result = await finished(server, make_task(None, tmp_path, **unset), "Complete", "")
        assert result.outcome == "completed"
        (tmp_path / "ca.crt").unlink()
        with pytest.raises(KubernetesError, match="CERTIFICATE_VERIFY_FAILED"):
            await run(make_task(None, tmp_path, **unset, tito_kubernetes_retry_sec=0.1))


async def test_an_api_server_that_stays_away_fails_the_run_in_bounded_time(tmp_path: Path) -> None:
    with pytest.raises(KubernetesError, match="ConnectError"):
        await run(make_task(None, tmp_path, tito_kubernetes_retry_sec=0.3))


async def test_a_job_s_agent_trains_like_any_other(
    server: KubernetesStandIn, sidecar: Running, tmp_path: Path
) -> None:
    """The stand-in's kubelet runs the container's command with the Job's environment, against the real sidecar."""
    template = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {"template": {"spec": {"containers": [{"name": "agent", "image": "{{metadata.image}}"}]}}},
    }
    args = dispatch_args(sidecar, tmp_path, **settings(server, tmp_path), tito_kubernetes_inject=False)
    (tmp_path / "job.yaml").write_text(json.dumps(template))
    sidecar.engine.replies.extend([Reply(text="First."), Reply(text="Second.")])
    running = asyncio.create_task(
        generate(args, task_sample(metadata={"image": "img:1", "instance_id": "task-7"}), SAMPLING)
    )
    name = await server.created()
    [container] = server.jobs[name]["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one["value"].replace("$$", "$") for one in container["env"]}
    environment["TITO_TASK_FILE"] = str(tmp_path / "task.json")
    (tmp_path / "task.json").write_text(json.dumps({"prompt": environment["TITO_PROMPT"]}))
    command = [sys.executable, "-I", "-S", str(PLAIN_AGENT), "2"]
    agent = await asyncio.create_subprocess_exec(*command, env=environment)
    server.finish(name, "Complete", "", exit_code=await agent.wait())
    [sample] = await running
    assert sample.status is Sample.Status.COMPLETED
    assert sum(sample.loss_mask) == sum(len(request.output_ids) for request in sidecar.engine.requests)

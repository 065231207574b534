"""What the threat model refuses: each with a reason, and a sentence that names the field and its value."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.protocols.errors import RequestError
from sidecar.injection.choices import LONGEST_ID, _session_id
from sidecar.injection.inject import inject
from sidecar.injection.refusal import REASONS, RefusalError
from sidecar.sessions.registry import check_session_id
from tests.injection.pods import agent_pod, injected, settings

TRANSPARENT = {"tito.dev/mode": "transparent"}


def refusal(pod: Any, **given: Any) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        inject(pod, settings(**given), "pod-1")
    return caught.value


def agent(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "agent", "image": "agent:1", **fields}]}


def adds(*capabilities: str) -> dict[str, Any]:
    return agent(securityContext={"capabilities": {"add": list(capabilities)}})


def host_path(path: str) -> dict[str, Any]:
    return {"volumes": [{"name": "host", "hostPath": {"path": path}}]}


FROM_SECRET = {"valueFrom": {"secretKeyRef": {"name": "tito-sidecar", "key": "engine-api-key"}}}
PROJECTED = {"projected": {"sources": [{"secret": {"name": "tito-sidecar"}}]}}

CASES: list[tuple[str, dict[str, str], dict[str, Any], str]] = [
    ("host_network", {}, {"hostNetwork": True}, "spec.hostNetwork"),
    ("host_pid", {}, {"hostPID": True}, "spec.hostPID"),
    ("shared_processes", {}, {"shareProcessNamespace": True}, "spec.shareProcessNamespace"),
    ("windows", {}, {"os": {"name": "windows"}}, "spec.os.name"),
    ("uid_1337", {}, {"securityContext": {"runAsUser": 1337}}, "spec.securityContext.runAsUser is 1337"),
    ("uid_1337", {}, agent(securityContext={"runAsUser": 1337}), "spec.containers['agent'].securityContext"),
    ("privileged", {}, agent(securityContext={"privileged": True}), "spec.containers['agent'] is privileged"),
    (
        "privileged",
        {},
        {"initContainers": [{"name": "sysctl", "image": "s", "securityContext": {"privileged": True}}]},
        "spec.initContainers['sysctl'] is privileged",
    ),
    ("capability", {}, adds("SYS_ADMIN"), "adds SYS_ADMIN"),
    ("capability", {}, adds("CAP_SYS_ADMIN"), "adds SYS_ADMIN"),
    ("capability", {}, adds("all"), "adds ALL"),
    ("capability", {}, adds("NET_RAW"), "adds NET_RAW"),
    ("capability", TRANSPARENT, adds("SETUID", "NET_ADMIN"), "adds NET_ADMIN, SETUID"),
    ("host_path", {}, host_path("/"), "hostPath '/'"),
    ("host_path", {}, host_path("/var/lib/kubelet/pods"), "hostPath"),
    ("host_path", {}, host_path("/var//lib/"), "hostPath"),
    ("host_path", {}, host_path("/data/../proc/1"), "hostPath"),
    ("host_path", {}, host_path("/run/containerd/containerd.sock"), "hostPath"),
    ("host_path", {}, host_path("/etc"), "hostPath"),
    ("host_path", {}, host_path("/etc/ssl/certs/../../cron.d"), "hostPath"),
    ("host_path", {}, host_path("/root"), "hostPath"),
    ("host_path", {}, host_path("/usr/local/bin"), "hostPath"),
    ("host_path", {}, host_path("/dev/sda"), "or the node"),
    ("secret", {}, agent(env=[{"name": "KEY", **FROM_SECRET}]), "spec.containers['agent'] reads Secret"),
    ("secret", {}, agent(envFrom=[{"secretRef": {"name": "tito-sidecar"}}]), "reads Secret 'tito-sidecar'"),
    ("secret", {}, {"volumes": [{"name": "s", "secret": {"secretName": "tito-sidecar"}}]}, "spec.volumes 's'"),
    ("secret", {}, {"volumes": [{"name": "s", **PROJECTED}]}, "spec.volumes 's'"),
    ("secret", {"tito.dev/secret": "mine"}, agent(envFrom=[{"secretRef": {"name": "mine"}}]), "Secret 'mine'"),
    ("secret", {"tito.dev/secret": "mine"}, agent(env=[{"name": "KEY", **FROM_SECRET}]), "Secret 'tito-sidecar'"),
    ("secret", {"tito.dev/secret": "mine"}, {"volumes": [{"name": "s", **PROJECTED}]}, "Secret 'tito-sidecar'"),
    (
        "container",
        {},
        {"initContainers": [{"name": "tito-sidecar", "image": "x"}]},
        "initContainers['tito-sidecar']",
    ),
    ("container", {}, {"containers": [{"name": "tito-redirect", "image": "x"}]}, "containers['tito-redirect']"),
    ("volume", {}, {"volumes": [{"name": "tito-ca", "emptyDir": {}}]}, "spec.volumes 'tito-ca'"),
    ("volume", {}, agent(volumeMounts=[{"name": "tito-state", "mountPath": "/x"}]), "mounts 'tito-state'"),
    ("volume", TRANSPARENT, agent(volumeMounts=[{"name": "own", "mountPath": "/etc/tito-ca/"}]), "/etc/tito-ca"),
    ("volume", TRANSPARENT, agent(volumeMounts=[{"name": "own", "mountPath": "/etc//tito-ca"}]), "/etc/tito-ca"),
    (
        "volume",
        TRANSPARENT,
        agent(volumeMounts=[{"name": "own", "mountPath": "/etc/tito-ca/ca-bundle.pem"}]),
        "/etc/tito-ca",
    ),
    ("port", {}, agent(ports=[{"containerPort": 8801}]), "port 8801"),
    ("port", TRANSPARENT, agent(ports=[{"containerPort": 8081}]), "port 8081"),
    ("annotation", {"tito.dev/mode": "magic"}, {}, "annotation tito.dev/mode is 'magic'"),
    ("annotation", {"tito.dev/engine_url": "http://x"}, {}, "annotation tito.dev/engine_url is not known"),
    ("annotation", {"tito.dev/engine-url": "sglang:30000"}, {}, "write http://HOST:PORT"),
    ("annotation", {"tito.dev/session-id": "a/b"}, {}, "annotation tito.dev/session-id is 'a/b'"),
    ("annotation", {"tito.dev/session-id": ""}, {}, "1 to 256"),
    ("annotation", {"tito.dev/secret": "Not A Name"}, {}, "annotation tito.dev/secret"),
    ("annotation", {"tito.dev/ephemeral-store": "yes"}, {}, 'write "true" or "false"'),
    ("annotation", {"tito.dev/containers": "agnet"}, {}, "names 'agnet'; the pod has agent"),
    ("annotation", {"tito.dev/containers": "clone"}, {}, "names 'clone', which ends before"),
    ("annotation", {"tito.dev/containers": " , "}, {}, "annotation tito.dev/containers"),
    ("annotation", {"tito.dev/settings": "{"}, {}, "it is no JSON"),
    ("annotation", {"tito.dev/settings": "[1]"}, {}, "write an object"),
    ("annotation", {"tito.dev/settings": '{"contextwindow": 1}'}, {}, "contextwindow is no setting"),
    ("annotation", {"tito.dev/settings": '{"context_window": "big"}'}, {}, "context_window is 'big'"),
    ("annotation", {"tito.dev/settings": '{"store": "sqlite:///x"}'}, {}, "tito.dev/ephemeral-store"),
    ("annotation", {"tito.dev/settings": '{"data_auth": "none"}'}, {}, "data_auth is set by the injection"),
]


@pytest.mark.parametrize(("reason", "annotations", "spec", "named"), CASES)
def test_a_pod_is_refused_with_a_message_that_names_it(
    reason: str, annotations: dict[str, str], spec: dict[str, Any], named: str
) -> None:
    error = refusal(agent_pod(annotations, **spec))
    assert [problem.reason for problem in error.problems] == [reason]
    assert named in str(error)
    assert reason in REASONS


def test_all_that_is_wrong_is_named_at_once() -> None:
    error = refusal(agent_pod(hostPID=True, hostNetwork=True, **adds("SYS_ADMIN")))
    assert [problem.reason for problem in error.problems] == ["host_network", "host_pid", "capability"]


def test_a_pod_without_an_engine_is_refused_and_the_annotation_named() -> None:
    error = refusal(agent_pod(), engine_url=None)
    assert [problem.reason for problem in error.problems] == ["engine_url"]
    assert "tito.dev/engine-url" in str(error)
    injected(agent_pod({"tito.dev/engine-url": "http://other:30000"}), engine_url=None)


@pytest.mark.parametrize("pod", [None, [], {}, {"metadata": {}}, {"metadata": {}, "spec": {"containers": [{}]}}])
def test_what_is_no_pod_is_refused(pod: Any) -> None:
    assert [problem.reason for problem in refusal(pod).problems] == ["malformed"]


@pytest.mark.parametrize(
    "spec",
    [
        host_path("/mnt/datasets"),
        host_path("/runs"),
        host_path("/homes/me"),
        host_path("/dev/shm"),
        host_path("/dev/infiniband"),
        host_path("/etc/localtime"),
        host_path("/usr/share/zoneinfo"),
        adds("SYS_PTRACE", "CHOWN"),
        adds("SETUID"),
        agent(securityContext={"runAsUser": 0}),
        agent(env=[{"name": "K", "valueFrom": {"secretKeyRef": {"name": "own", "key": "k"}}}]),
        agent(ports=[{"containerPort": 8081}]),
    ],
)
def test_what_the_threat_model_allows_is_injected(spec: dict[str, Any]) -> None:
    injected(agent_pod(**spec))


def test_a_helper_that_is_no_agent_may_have_what_agents_may_not() -> None:
    two = [
        {"name": "agent", "image": "a"},
        {"name": "vpn", "image": "v", "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}},
    ]
    injected(agent_pod({**TRANSPARENT, "tito.dev/containers": "agent"}, containers=two))
    assert [problem.reason for problem in refusal(agent_pod(TRANSPARENT, containers=two)).problems] == [
        "capability"
    ]


@pytest.mark.parametrize(
    "text", ["", "a", "a" * LONGEST_ID, "a" * (LONGEST_ID + 1), "a/b", "ä b", "a\nb", "\u200b"]
)
def test_session_ids_are_judged_as_the_sidecar_judges_them(text: str) -> None:
    def judged(judge: Any, error: type[Exception]) -> bool:
        try:
            judge(text)
        except error:
            return False
        return True

    assert judged(_session_id, ValueError) == judged(check_session_id, RequestError)

"""The containers and volumes that are added to a pod. Pure; the chart's library template says the same in Helm.

The sidecar is a native one: an init container with `restartPolicy: Always` (Kubernetes 1.29), which the kubelet
starts before the agents and ends after them. What the API server fills in is left to it, see restore.py.
"""

from __future__ import annotations

from typing import Any

from sidecar.injection.choices import Choices
from sidecar.injection.serve_settings import plain_env, settings_env

SIDECAR = "tito-sidecar"
REDIRECT = "tito-redirect"
CONTAINER_NAMES = (SIDECAR, REDIRECT)

SIDECAR_UID = 1337
"""The uid whose traffic is not redirected."""

PORTS = {8800: "data plane", 8801: "control plane", 8802: "probes"}
INTERCEPT_PORT = 8081

CA_BUNDLE_VOLUME = "tito-ca-bundle"
CA_BUNDLE_DIR = "/etc/tito-ca"
CA_BUNDLE = f"{CA_BUNDLE_DIR}/ca-bundle.pem"
_CA_DIR = "/var/lib/tito-ca"
_STATE_DIR = "/var/lib/tito-sidecar"
_TOKEN_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"

DRAIN_SECONDS = 570
GRACE_SECONDS = 600
"""With an ephemeral store the pod may end only when all is read, and the kubelet must not cut that short."""


def sidecar_container(choices: Choices) -> dict[str, Any]:
    """The sidecar, an entry of `initContainers`."""
    container: dict[str, Any] = {
        "name": SIDECAR,
        "image": choices.image,
        "imagePullPolicy": choices.image_pull_policy,
        "restartPolicy": "Always",
        "args": ["serve"],
        "env": _environment(choices),
        "ports": [
            {"name": "tito-control", "containerPort": 8801, "protocol": "TCP"},
            {"name": "tito-health", "containerPort": 8802, "protocol": "TCP"},
        ],
        # the engine gates the start alone: its restart must not empty a Service, nor restart this container
        "startupProbe": _probe("/ready?engine=1", 2, 2, 150),
        "readinessProbe": _probe("/ready", 5, 2),
        "livenessProbe": _probe("/health", 10, 5, 6),
    }
    if choices.ephemeral_store:
        command = ["tito-sidecar", "sessions", "wait-drained", "--timeout", str(DRAIN_SECONDS)]
        container["lifecycle"] = {"preStop": {"exec": {"command": command}}}
    container["resources"] = {kind: dict(given) for kind, given in choices.resources.items()}
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": SIDECAR_UID,
        "runAsGroup": SIDECAR_UID,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container["volumeMounts"] = _mounts(choices)
    return container


def redirect_init_container(choices: Choices) -> dict[str, Any]:
    """Transparent mode: writes the pod's redirect rules and ends. The only part that needs a capability."""
    return {
        "name": REDIRECT,
        "image": choices.image,
        "imagePullPolicy": choices.image_pull_policy,
        "args": ["redirect-init"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": False,
            "runAsUser": 0,
            "runAsGroup": 0,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [_no_token()],
    }


def init_containers(choices: Choices) -> list[dict[str, Any]]:
    """All of ours, in their order, which is behind all others: the pod's own set-up has its own traffic."""
    ours = [sidecar_container(choices)]
    return [*ours, redirect_init_container(choices)] if choices.transparent else ours


def volumes(choices: Choices) -> list[dict[str, Any]]:
    """Entries of the pod's `volumes`. The CA's key is in memory, in a volume that only the sidecar mounts."""
    ours: list[dict[str, Any]] = [{"name": "tito-state", "emptyDir": {}}, {"name": "tito-tmp", "emptyDir": {}}]
    ours.append({"name": "tito-no-token", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
    if choices.transparent:
        ours.append({"name": "tito-ca", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
        ours.append({"name": CA_BUNDLE_VOLUME, "emptyDir": {}})
    return ours


def _environment(choices: Choices) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = [
        plain_env("TITO_ENGINE_URL", choices.engine_url),
        _secret_env("TITO_ENGINE_API_KEY", choices.secret, "engine-api-key"),
        _secret_env("TITO_ENGINE_ADMIN_KEY", choices.secret, "engine-admin-key", optional=True),
        _secret_env("TITO_CONTROL_TOKEN", choices.secret, "control-token"),
        _secret_env("TITO_SESSION_SECRET", choices.secret, "session-secret"),
    ]
    if not choices.ephemeral_store:
        env.append(_secret_env("TITO_STORE", choices.secret, "store-url"))
    fixed = {
        "TITO_LISTEN": "127.0.0.1:8800",
        "TITO_CONTROL_LISTEN": "0.0.0.0:8801",
        "TITO_HEALTH_LISTEN": "0.0.0.0:8802",
        "TITO_STATE_DIR": _STATE_DIR,
        "HF_HOME": f"{_STATE_DIR}/hub",
        "TITO_DATA_AUTH": "session-key",
    }
    if choices.transparent:
        fixed |= {
            "TITO_INTERCEPT": f"transparent@{INTERCEPT_PORT}",
            "TITO_CA_DIR": _CA_DIR,
            "TITO_CA_BUNDLE": CA_BUNDLE,
        }
    if choices.session_id is not None:
        fixed["TITO_SESSION_ID"] = choices.session_id
    env += [plain_env(name, value) for name, value in fixed.items()]
    return env + settings_env(choices.settings)


def _secret_env(name: str, secret: str, key: str, *, optional: bool = False) -> dict[str, Any]:
    reference: dict[str, Any] = {"name": secret, "key": key}
    if optional:
        reference["optional"] = True
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def _probe(path: str, period: int, timeout: int, failures: int | None = None) -> dict[str, Any]:
    probe = {"httpGet": {"path": path, "port": 8802}, "periodSeconds": period, "timeoutSeconds": timeout}
    return probe if failures is None else {**probe, "failureThreshold": failures}


def _mounts(choices: Choices) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "tito-state", "mountPath": _STATE_DIR},
        {"name": "tito-tmp", "mountPath": "/tmp"},
        _no_token(),
    ]
    if choices.transparent:
        mounts.append({"name": "tito-ca", "mountPath": _CA_DIR})
        mounts.append({"name": CA_BUNDLE_VOLUME, "mountPath": CA_BUNDLE_DIR})
    return mounts


def _no_token() -> dict[str, Any]:
    """Kubernetes mounts the pod's service-account token wherever nothing is mounted at its place yet."""
    return {"name": "tito-no-token", "mountPath": _TOKEN_DIR, "readOnly": True}

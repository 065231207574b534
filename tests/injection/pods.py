"""Pods and settings that the tests of injection start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sidecar.injection.inject import inject
from sidecar.injection.settings import InjectionSettings
from tests.injection.kubernetes import patched

SECRET = "a session secret of the cluster"
ENGINE = "http://sglang.engine.svc:30000"


def settings(**given: Any) -> InjectionSettings:
    """Settings of a webhook, without those of this machine."""
    return InjectionSettings.model_construct(
        **{
            **{name: field.get_default() for name, field in InjectionSettings.model_fields.items()},
            "tls_cert": Path("tls.crt"),
            "tls_key": Path("tls.key"),
            "session_secret": SECRET,
            "image": "registry.example/tito-sidecar:0.1.0",
            "engine_url": ENGINE,
            **given,
        }
    )


def agent_pod(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod with one agent that asks for a sidecar."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "rollout-7",
            "namespace": "rollouts",
            "labels": {"app": "agent", "tito.dev/inject": "true"},
            "annotations": {"tito.dev/session-id": "rollout-7", **(annotations or {})},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "agent", "image": "agent:1", "env": [{"name": "TASK", "value": "7"}]}],
            "initContainers": [{"name": "clone", "image": "git:1", "args": ["clone", "https://example.org/repo"]}],
            **spec,
        },
    }


def injected(pod: dict[str, Any], new_session: str = "pod-1", **given: Any) -> dict[str, Any]:
    """The pod after one pass of the webhook."""
    injection = inject(pod, settings(**given), new_session)
    assert injection is not None
    return patched(pod, injection.patch)


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """The container of that name, init containers included."""
    spec = pod["spec"]
    (found,) = [entry for entry in [*spec.get("initContainers", []), *spec["containers"]] if entry["name"] == name]
    result: dict[str, Any] = found
    return result


def env_of(pod: dict[str, Any], name: str) -> dict[str, str]:
    """Variables of a container that have a plain value."""
    return {entry["name"]: entry["value"] for entry in container(pod, name).get("env", []) if "value" in entry}

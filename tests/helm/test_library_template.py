"""What a chart gets that includes the library template is what the webhook injects, for the same settings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.injection.agents import agent_env, with_agent_settings
from sidecar.injection.choices import Choices
from sidecar.injection.container import GRACE_SECONDS, init_containers, volumes
from sidecar.injection.settings import load_injection_settings
from tests.helm.golden import same_as_reviewed
from tests.helm.tools import ROOT, HelmError, documents, helm, only, render

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate: make test-helm")

IMAGE = {"repository": "registry.example/tito", "tag": "2", "pullPolicy": "Always"}
SIDECARS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "settings": {
        "settings": {"context_window": 2097152, "partial_rollout": False, "max_body": "16MiB", "slow_reader": 2.5}
    },
    "dollars": {"sessionId": "a$$b$(X)", "settings": {"volatile_pattern": "^$(TITO_ENGINE_API_KEY)$$"}},
    "ephemeral": {"ephemeralStore": True},
    "resources": {"resources": {"requests": {"cpu": "2", "memory": "3Gi"}, "limits": {"nvidia.com/gpu": "1"}}},
    "no session": {"sessionId": ""},
    "transparent": {"mode": "transparent"},
    "transparent and ephemeral": {"mode": "transparent", "ephemeralStore": True, "settings": {"match": "exact"}},
}


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`helm/examples/own-pods` with its dependency, which is this chart."""
    copied = tmp_path_factory.mktemp("charts") / "helm"
    shutil.copytree(ROOT / "helm", copied)
    helm("dependency", "build", copied / "examples" / "own-pods")
    return copied / "examples" / "own-pods"


def _job(chart: Path, sidecar: dict[str, Any]) -> dict[str, Any]:
    values = {"image": IMAGE, "secrets": {"name": "keys"}, "sidecar": sidecar}
    return only(documents(render({"tito-sidecar": values}, chart=chart)), "Job")


def _choices(chart: Path, sidecar: dict[str, Any]) -> Choices:
    """The same settings, as the webhook has them; what is not given comes from the chart's values."""
    defaults = yaml.safe_load((ROOT / "helm" / "tito-sidecar" / "values.yaml").read_text())["sidecar"]
    own = yaml.safe_load((chart / "values.yaml").read_text())["tito-sidecar"]["sidecar"]
    given = {**defaults, **own, **sidecar}
    if "resources" in sidecar:  # helm merges maps
        given["resources"] = {
            kind: defaults["resources"].get(kind, {}) | sidecar["resources"].get(kind, {})
            for kind in defaults["resources"]
        }
    return Choices(
        mode=given["mode"],
        engine_url=given["engineUrl"],
        image="registry.example/tito:2",
        image_pull_policy="Always",
        secret="keys",
        ephemeral_store=given["ephemeralStore"],
        session_id=given["sessionId"] or None,
        settings=given["settings"],
        resources=given["resources"],
    )


@pytest.mark.parametrize("name", SIDECARS)
def test_containers_and_volumes_are_those_of_the_webhook(name: str, chart: Path) -> None:
    pod = _job(chart, SIDECARS[name])["spec"]["template"]["spec"]
    choices = _choices(chart, SIDECARS[name])
    assert pod["initContainers"] == init_containers(choices)
    assert pod["volumes"] == volumes(choices)
    assert pod.get("terminationGracePeriodSeconds") == (GRACE_SECONDS if choices.ephemeral_store else None)


@pytest.mark.parametrize("name", [name for name in SIDECARS if name != "no session"])
def test_the_agent_gets_what_the_webhook_gives_it_but_its_key_from_a_secret(name: str, chart: Path) -> None:
    [agent] = _job(chart, SIDECARS[name])["spec"]["template"]["spec"]["containers"]
    choices = _choices(chart, SIDECARS[name])
    injected, warnings = with_agent_settings({"name": "agent", "image": "i"}, choices, "KEY", "containers[0]")
    assert not warnings
    assert agent["securityContext"] == injected["securityContext"]
    assert agent.get("volumeMounts") == injected.get("volumeMounts")
    from_secret = {"secretKeyRef": {"name": "task-7", "key": "api-key"}}
    wanted = [
        {"name": entry["name"], "valueFrom": from_secret} if entry["value"] == "KEY" else entry
        for entry in agent_env(choices, "KEY")
    ]
    assert sorted(agent["env"], key=lambda entry: entry["name"]) == sorted(wanted, key=lambda entry: entry["name"])


@pytest.mark.parametrize("name", ["defaults", "transparent and ephemeral"])
def test_the_job_is_the_reviewed_one(name: str, chart: Path) -> None:
    values = {"image": IMAGE, "secrets": {"name": "keys"}, "sidecar": SIDECARS[name]}
    same_as_reviewed(render({"tito-sidecar": values}, chart=chart), f"own_pods_{name.replace(' ', '_')}")


@pytest.mark.parametrize("version", [f"1.{minor}" for minor in range(29, 38)])
def test_the_jobs_are_strictly_valid(version: str, chart: Path) -> None:
    for sidecar in (SIDECARS["settings"], SIDECARS["transparent and ephemeral"]):
        kubernetes_validate.validate(_job(chart, sidecar), version, strict=True)


@pytest.mark.parametrize(
    ("sidecar", "said"),
    [
        ({"engineUrl": ""}, "sidecar.engineUrl is empty"),
        ({"mode": "transparent", "sessionId": ""}, "sidecar.sessionId is empty"),
        ({"sessionKeySecret": ""}, "sidecar.sessionKeySecret is empty"),
    ],
)
def test_what_a_pod_cannot_do_without_is_asked_for(sidecar: dict[str, Any], said: str, chart: Path) -> None:
    with pytest.raises(HelmError, match=said):
        _job(chart, sidecar)


def test_the_dependency_installs_nothing_of_its_own(chart: Path) -> None:
    kinds = [one["kind"] for one in documents(render({}, chart=chart))]
    assert kinds == ["Job"]


@pytest.mark.parametrize("name", [name for name in SIDECARS if name != "no session"])
def test_the_webhook_reads_the_settings_that_the_chart_gives_it(name: str, tmp_path: Path) -> None:
    sidecar = {"engineUrl": "http://sglang.engine:30000", **SIDECARS[name], "sessionId": ""}
    values = {
        "image": IMAGE,
        "secrets": {"name": "keys", "engineApiKey": "k", "storeUrl": "postgresql://u:p@h/d"},
        "sidecar": sidecar,
    }
    found = documents(render(values))
    config = tmp_path / "webhook.yaml"
    config.write_text(only(found, "ConfigMap")["data"]["webhook.yaml"])
    arguments = only(found, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[0] == "inject-webhook"
    flags = dict(argument.removeprefix("--").split("=") for argument in arguments[1:])
    assert flags.pop("config") == "/etc/tito/settings/webhook.yaml"
    given = {flag.replace("-", "_"): value for flag, value in flags.items()}
    settings = load_injection_settings({**given, "session_secret": "a-secret-of-the-tests"}, config)
    choices = _choices_of(settings)
    wanted = only(found, "ConfigMap") and sidecar
    assert choices.mode == wanted.get("mode", "base_url")
    assert choices.image == "registry.example/tito:2" and choices.image_pull_policy == "Always"
    assert choices.secret == "keys" and choices.engine_url == "http://sglang.engine:30000"
    assert choices.ephemeral_store is wanted.get("ephemeralStore", False)
    assert choices.settings == wanted.get("settings", {})
    assert settings.resources["limits"]["memory"] == "2Gi"


def _choices_of(settings: Any) -> Choices:
    from sidecar.injection.choices import choices_of

    return choices_of({"metadata": {}, "spec": {}}, settings, "a-session")

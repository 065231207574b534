"""A real SGLang 0.5.23 on this machine's CPU: which packages, from where, and whether it can be had at all.

Promise: `engine_python()` gives an interpreter that can run SGLang, in an environment under `.cache/engine` that
is made once per recipe (its folder is named after the recipe's hash), or raises `EngineUnavailable` with a reason.
SGLang does not support this set-up: it is fit to prove the protocol, not to measure anything.
Concurrency: blocking, minutes the first time; processes may call it at the same time, one of them installs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "engine"
INSIDE = Path(__file__).resolve().parent / "inside"
"""What the engine's interpreter runs."""

STUBS = "engine_stubs.py"

SGLANG = "0.5.23"
INTERPRETERS = ("python3.11", "/usr/bin/python3.11")
TORCH = "torch==2.13.0+cpu"
"""Named with its local version, or an index may answer with a CUDA build and six gigabytes of its libraries."""
PACKAGES = (
    "transformers==5.19.0", "tokenizers==0.23.2", "xgrammar==0.2.7", "openai==2.8.0", "openai-harmony==0.0.4",
    "compressed-tensors==0.18.0", "llguidance<2", "accelerate", "aiohttp", "anthropic", "blobfile", "dill",
    "distro", "easydict", "einops", "fastapi", "gguf", "interegular", "IPython", "jsonschema", "msgspec", "ninja",
    "numpy", "orjson", "packaging", "partial_json_parser", "pillow", "prometheus-client", "psutil", "pybase64",
    "pydantic", "python-multipart", "pyzmq", "regex", "requests", "scipy", "sentencepiece", "setproctitle",
    "soundfile", "tiktoken", "tqdm", "uvicorn", "uvloop", "watchfiles", "xxhash", "zstandard",
)  # fmt: skip
WITHOUT_DEPENDENCIES = (f"sglang=={SGLANG}", "outlines==0.1.11")
"""Their own requirements name CUDA packages."""
INSTALL_SECONDS = 900
INSTALL_DISK = 6 * 2**30
RUN_MEMORY = 5 * 2**30


class EngineUnavailable(Exception):  # noqa: N818 - a state of the machine
    """SGLang cannot run here; the text says why and what would help."""


def engine_python() -> Path:
    """The interpreter, its environment made first if need be; minutes, of which at most 15 per step."""
    _require_memory()
    environment = CACHE / f"sglang-{SGLANG}-{_fingerprint()}"
    python = environment / "bin" / "python"
    ready = environment / ".ready"
    if not ready.is_file():
        with locked():
            if not ready.is_file():
                _install(environment, python)
                ready.touch()
    return python


@contextmanager
def locked() -> Iterator[None]:
    """One process at a time makes things under `CACHE`."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fingerprint() -> str:
    stubs = (INSIDE / STUBS).read_bytes()
    words = repr((INTERPRETERS, TORCH, PACKAGES, WITHOUT_DEPENDENCIES)).encode()
    return hashlib.sha256(words + stubs).hexdigest()[:12]


def _require_memory() -> None:
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    free = pages * size
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    if free < RUN_MEMORY:
        raise EngineUnavailable(f"needs {RUN_MEMORY >> 20} MiB of free memory, there are {free >> 20}")


def _install(environment: Path, python: Path) -> None:
    free = shutil.disk_usage(CACHE).free
    if free < INSTALL_DISK:
        raise EngineUnavailable(f"needs {INSTALL_DISK >> 20} MiB of disk to install, there are {free >> 20}")
    shutil.rmtree(environment, ignore_errors=True)
    _run([_interpreter(), "-m", "venv", str(environment)], "cannot make a virtual environment")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--progress-bar", "off"]
    _run([*pip, TORCH], f"needs a package index with {TORCH}, the CPU build (pip's own settings name the index)")
    _run([*pip, TORCH, *PACKAGES], "needs the package index once, to install what SGLang imports")
    _run([*pip, "--no-deps", *WITHOUT_DEPENDENCIES], f"needs the package index once, to install SGLang {SGLANG}")
    [site] = environment.glob("lib/python*/site-packages")
    shutil.copyfile(INSIDE / STUBS, site / STUBS)
    (site / "engine_stubs.pth").write_text("import engine_stubs\n")


def _interpreter() -> str:
    for name in INTERPRETERS:
        found = shutil.which(name)
        if found is not None and _runs(found):
            return found
    raise EngineUnavailable("needs Python 3.11 with venv (apt-get install python3.11-venv, or pyenv install 3.11)")


def _runs(python: str) -> bool:
    checked = subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True, check=False)
    return checked.returncode == 0


def _run(command: list[str], otherwise: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise EngineUnavailable(f"{otherwise}: not done after {INSTALL_SECONDS} s") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise EngineUnavailable(f"{otherwise}: {' '.join(said)[-300:]}")

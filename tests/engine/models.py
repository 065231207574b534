"""The models that the real engine serves: a tiny random Qwen3 in two versions, and SmolLM2, a model that can talk.

Promise: `model(name)` gives complete directories that SGLang loads, under `.cache/engine`, made once by its
interpreter; the tokenizer in them is the one that the stand-in serves. Raises `EngineUnavailable` if one cannot be
made. Concurrency: blocking (seconds the first time); one process makes, others wait.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sidecar.local_engine import EngineExtraError, prepare_model
from sidecar.local_engine.model_files import locate_gguf
from tests.engine.recipe import CACHE, INSIDE, EngineUnavailable, engine_python, locked
from tests.support.npm import npm_tokenizer

MAKE_SECONDS = 600


@dataclass(frozen=True)
class ModelDirs:
    """`first` is what the server starts with, `second` other weights of the same shape for an update."""

    first: Path
    second: Path


def tokenizer_dir(name: str) -> Path:
    """The tokenizer alone, for the stand-in. Skips the calling test where it cannot be had."""
    if name == "qwen3":
        return npm_tokenizer("qwen3")
    try:
        return prepare_model(CACHE / "gguf").tokenizer_dir
    except EngineExtraError as error:
        raise EngineUnavailable(str(error)) from error


def model(name: str) -> ModelDirs:
    """`qwen3`: two draws of random weights. `smollm2`: the real weights for both."""
    tokenizer = tokenizer_dir(name)
    if name == "qwen3":
        return ModelDirs(
            _made("qwen3-1", "make_qwen3.py", [str(tokenizer)], "1"),
            _made("qwen3-2", "make_qwen3.py", [str(tokenizer)], "2"),
        )
    only = _made("smollm2", "make_smollm2.py", [str(locate_gguf()), str(tokenizer)])
    return ModelDirs(only, only)


def _made(name: str, script: str, sources: list[str], *arguments: str) -> Path:
    """The directory that `script` fills; named after the script's content, so a changed one makes it anew."""
    path = INSIDE / script
    python = engine_python()
    digest = hashlib.sha256(path.read_bytes() + python.parent.parent.name.encode()).hexdigest()[:8]
    target = CACHE / f"{name}-{digest}"
    with locked():
        if target.is_dir():
            return target
        scratch = CACHE / f".{target.name}"
        shutil.rmtree(scratch, ignore_errors=True)
        command = [str(python), str(path), *sources, str(scratch), *arguments]
        made = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_SECONDS, check=False)
        assert made.returncode == 0, f"{script} failed:\n{made.stderr[-2000:]}"
        scratch.rename(target)
    return target

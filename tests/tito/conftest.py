"""Models built from the real tokenizers, and transformers' own view of them as the independent oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from sidecar.model_files import read_model
from sidecar.tito.model import Model, build_model


@pytest.fixture(scope="session")
def qwen3(qwen3_dir: Path) -> Model:
    """Qwen3, as the sidecar loads it."""
    return build_model(read_model(str(qwen3_dir)))


@pytest.fixture(scope="session")
def smollm2(smollm2_dir: Path) -> Model:
    """SmolLM2, as the sidecar loads it."""
    return build_model(read_model(str(smollm2_dir)))


@pytest.fixture(scope="session")
def qwen3_reference(qwen3_dir: Path) -> Any:
    """Qwen3's tokenizer, as transformers loads it."""
    return AutoTokenizer.from_pretrained(qwen3_dir)


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_dir: Path) -> Any:
    """SmolLM2's tokenizer, as transformers loads it."""
    return AutoTokenizer.from_pretrained(smollm2_dir)

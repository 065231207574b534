"""Renders that somebody has read. `TITO_UPDATE_GOLDEN=1 make test-helm` writes them anew: look at it."""

from __future__ import annotations

import os
import re
from pathlib import Path


def same_as_reviewed(rendered: str, name: str) -> None:
    """Assert that a render is `NAME.yaml`, but for what is random."""
    path = Path(__file__).with_name(f"{name}.yaml")
    found = _without_what_is_generated(rendered)
    if os.environ.get("TITO_UPDATE_GOLDEN") == "1":
        path.write_text(found)
    assert path.is_file(), "run TITO_UPDATE_GOLDEN=1 make test-helm, and read what it writes"
    assert found == path.read_text()


def _without_what_is_generated(text: str) -> str:
    text = re.sub(r"(tls\.crt|tls\.key|ca\.crt|caBundle): LS0t\S+", r"\1: GENERATED", text)
    text = re.sub(r"(control-token|session-secret): (?!YS1)\S{50,}", r"\1: GENERATED", text)
    return re.sub(r"\n{2,}", "\n", text)

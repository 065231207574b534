"""Writes `docs/families.md`: `python -m tests.conformance.write_families`."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.corpus import samples
from tests.conformance.families import document
from tests.conformance.matrix import rows

PATH = Path(__file__).resolve().parents[2] / "docs" / "families.md"

if __name__ == "__main__":
    PATH.write_text(document(rows(samples())), encoding="utf-8")

"""`docs/families.md` says what the matrix finds today."""

from __future__ import annotations

import pytest

from tests.conformance.families import document
from tests.conformance.matrix import Row
from tests.conformance.write_families import PATH

pytestmark = [pytest.mark.npm, pytest.mark.timeout(900)]


def test_the_document_is_up_to_date(matrix: list[Row]) -> None:
    """Otherwise: `python -m tests.conformance.write_families`."""
    written, found = PATH.read_text(encoding="utf-8").splitlines(), document(matrix).splitlines()
    differing = [line for line in found if line not in set(written)] + [
        line for line in written if line not in set(found)
    ]
    assert written == found, differing[:3]


def test_every_template_is_listed_once(matrix: list[Row]) -> None:
    text = PATH.read_text(encoding="utf-8")
    tables = text[text.index("## Templates") : text.index("## Stateful")]
    listed = [
        name for line in tables.splitlines() if line.startswith("| ") for name in line.split(" | ")[-1].split(", ")
    ]
    assert len([name for name in listed if "templates" not in name]) == len(matrix)

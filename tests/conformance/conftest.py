"""The matrix is worked out once per test session, by processes of its own."""

from __future__ import annotations

import pytest

from tests.conformance.corpus import samples
from tests.conformance.matrix import Row, rows
from tests.conformance.vocabularies import BY_FAMILY, vocabulary


@pytest.fixture(scope="session")
def matrix() -> list[Row]:
    """A row per template. Everything is fetched here, where a test can be skipped."""
    corpus = samples()
    for name in sorted({*BY_FAMILY.values(), "qwen3"}):
        vocabulary(name)
    return rows(corpus)

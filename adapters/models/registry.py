"""All known families, and which one a template belongs to."""

from __future__ import annotations

from adapters.models.family import ModelFamily
from adapters.models.qwen3 import QWEN3
from adapters.models.smollm2 import SMOLLM2

FAMILIES: tuple[ModelFamily, ...] = (QWEN3, SMOLLM2)


def find_family(name: str, chat_template: str) -> ModelFamily:
    """The family called `name`, or with `auto` the one whose template this is.

    Raises `ValueError` that names the known families."""
    for family in FAMILIES:
        if family.name == name or (name == "auto" and family.matches(chat_template)):
            return family
    known = ", ".join(family.name for family in FAMILIES)
    if name == "auto":
        raise ValueError(f"no known model family matches the chat template; choose --model-family from {known}")
    raise ValueError(f"--model-family is {name!r}; known families are auto, {known}")

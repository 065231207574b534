"""Chat templates of our own by name, as Jinja files beside this one. Immutable.

Each prints what its model's own template prints, except that the reasoning of earlier turns stays."""

from __future__ import annotations

from pathlib import Path

_FILES = {
    "qwen3-keep-thinking": "qwen3_keep_thinking.jinja",
    "qwen3.5-keep-thinking": "qwen3_5_keep_thinking.jinja",
}
TEMPLATE_NAMES = tuple(_FILES)
"""What `template_file` knows."""


def template_file(name: str) -> Path | None:
    """The file of our template called `name`; None if there is none."""
    file = _FILES.get(name)
    return None if file is None else Path(__file__).with_name(file)

"""Text of models on a terminal: what cannot be seen is spelled out, so it is exact and cannot steer it. Pure.

Tables are built from `rich.text.Text`, never from markup: `[INST]` is no style.
"""

from __future__ import annotations

import re

_LINES = re.compile(r"\n*[^\n]+\n?|\n+")


def safe(text: str) -> str:
    """`text` with every character that cannot be printed as Python writes it: `\\n`, `\\x1b`, `\\u200b`."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def visible(text: str) -> str:
    """`safe` text with backslashes doubled, so that it can be told what stood there."""
    return safe(text.replace("\\", "\\\\"))


def quoted(text: str) -> str:
    """`visible` text in double quotes, which show spaces at its ends."""
    return f'"{visible(text)}"'


def quoted_lines(text: str) -> str:
    """Like `quoted`, but broken as `text` is; empty lines stay before the next one."""
    return '"' + "\n".join(map(visible, _LINES.findall(text))) + '"'

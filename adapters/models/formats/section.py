"""A block that holds several calls between two markers. Pure."""

from __future__ import annotations

from collections.abc import Callable

from adapters.models.formats.base import Call, Piece
from adapters.models.formats.cursor import Cursor, Malformed

_MOST_MALFORMED = 20
"""What is no call in one block, after which its rest is text: each could be read to the end of the reply."""


def section(
    cursor: Cursor, begin: str, close: str, item: Callable[[Cursor], Call], *, strict: bool = False
) -> list[Piece]:
    """Read the calls behind a block's opener, up to and with `close`; each begins with `begin`, `item` reads it.

    Each call is decided alone: what is none is text. The end of the reply ends the block too, for a call has
    markers of its own. `strict`: the block's closer is the call's, and nothing but calls may stand before it."""
    cursor.space()
    if not cursor.sees(begin):
        raise Malformed
    pieces: list[Piece] = []
    malformed = 0
    while not (cursor.exhausted and cursor.ended):
        if cursor.sees(close):
            cursor.take(close)
            return pieces
        start = cursor.at
        try:
            if not cursor.sees(begin):
                raise Malformed
            pieces.append(item(cursor))
        except Malformed:
            if strict:
                raise
            cursor.at = start
            malformed += 1
            pieces.append(cursor.skip_to(*((begin, close) if malformed < _MOST_MALFORMED else (close,))))
        cursor.space()
    if strict:
        raise Malformed
    return pieces

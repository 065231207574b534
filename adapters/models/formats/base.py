"""What a call format and a reasoning format are. Plain data and one small base class; readers are immutable.

A reader is made once per model, from the model's marks (`adapters.models.marks`): its literals are then control
tokens where the tokenizer has them, so the same letters sampled as ordinary ids are never taken for markers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from adapters.models.formats.cursor import Cursor, Incomplete, Malformed
from adapters.models.formats.schema import Tools
from adapters.models.marks import Marks


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `arguments` is JSON text of an object; `id` is what the model itself wrote, if it writes ids."""

    name: str
    arguments: str
    id: str | None = None


Piece = Call | str
"""A call, or text of a block that is none: content, as the model wrote it (with marks)."""


@dataclass(frozen=True, slots=True)
class Block:
    """What stands at an opener: its pieces, of which at least one is a call, and where it ends in the text."""

    pieces: tuple[Piece, ...]
    end: int


NO_CALL = Block((), 0)
"""At this opener stands no call: the opener is text like any other."""


class CallReader(ABC):
    """A format's grammar. `read` is pure, and what it has once decided further text does not change."""

    openers: tuple[str, ...] = ()
    """Where a block can begin."""
    starts: str = ""
    """Characters that can begin a block without an opener, if they are the first of the reply."""
    wake: tuple[str, ...] = ()
    """A long block is worth reading again only when one of these has come, or the reply has ended."""

    def read(self, text: str, at: int, tools: Tools, ended: bool) -> Block | None:
        """The block at `text[at:]`; None if that takes more text. `ended`: there will be none, so never None."""
        cursor = Cursor(text, at, ended)
        try:
            pieces = self.parse(cursor, tools)
        except Incomplete:
            return None
        except Malformed:
            return NO_CALL
        found = any(isinstance(piece, Call) for piece in pieces)
        return Block(tuple(pieces), cursor.at) if found else NO_CALL

    @abstractmethod
    def parse(self, cursor: Cursor, tools: Tools) -> list[Piece]:
        """The pieces of the block at the cursor, which is left behind it. Raises `Malformed` and `Incomplete`."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`name` is SGLang's where it has one. `markers` are the spellings that belong to the format: where they stand
    in content they are shown, even if the tokenizer calls them special. `reader` is None for gpt-oss, whose replies
    are read as a whole (`adapters.models.harmony`). `make_id` makes a fresh id into one that the template takes."""

    name: str
    markers: tuple[str, ...]
    reader: Callable[[Marks], CallReader] | None
    make_id: Callable[[str], str] = str


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning stands between two markers at the start of a reply. No markers: gpt-oss, see `ToolFormat`."""

    name: str
    opener: str
    closer: str

"""The text of one reply, made from its sampled ids as they come.

Promise: the concatenation of what `take` returns equals `tokenizers`' decode of the same ids; half a UTF-8
character and the beginning of a possible stop string are kept back until they are decided, so text that left
is never taken back. Concurrency: one object per generation, used from one event loop.
"""

import codecs
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from sidecar.local_engine.byte_level import token_bytes


class TokenTable:
    """The bytes that each id prints, and which ids are special."""

    def __init__(self, tokenizer_dir: Path) -> None:
        tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(number for number, token in added.items() if token.special)
        names = sorted((number, name) for name, number in tokenizer.get_vocab(with_added_tokens=True).items())
        self._bytes = [name.encode() if number in added else token_bytes(name) for number, name in names]

    def bytes_of(self, token_id: int) -> bytes:
        return self._bytes[token_id]


class ReplyText:
    """Decodes ids one by one and watches for stop strings."""

    def __init__(self, table: TokenTable, stop: Sequence[str], skip_special_tokens: bool) -> None:
        self._table = table
        self._stop = tuple(stop)
        self._skip_special = skip_special_tokens
        self._watched = codecs.getincrementaldecoder("utf-8")(errors="replace")  # special tokens included
        self._visible = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._tail = ""  # the end of the watched text, long enough to hold a stop string that is not complete
        self._kept = ""  # visible text that has not left yet
        self._closed = False

    def append(self, token_id: int) -> str | None:
        """Add one id; return the stop string that it completes, if any."""
        piece = self._table.bytes_of(token_id)
        if not (self._skip_special and token_id in self._table.special):
            self._kept += self._visible.decode(piece)
        if not self._stop:
            return None
        searched = self._tail + self._watched.decode(piece)
        self._tail = searched[-max(map(len, self._stop)) :]
        return next((text for text in self._stop if text in searched), None)

    def piece(self, token_id: int) -> str:
        """Return what one id prints by itself, U+FFFD for parts of a character."""
        return self._table.bytes_of(token_id).decode(errors="replace")

    def close(self, trim_from: str | None = None) -> None:
        """End the reply: flush half a character as U+FFFD, cut the text where the stop string begins."""
        self._kept += self._visible.decode(b"", final=True)
        if trim_from is not None:
            self._kept = self._kept.partition(trim_from)[0]
        self._closed = True

    def take(self) -> str:
        """Return the visible text that is decided and has not been taken yet."""
        cut = len(self._kept) if self._closed else len(self._kept) - self._undecided()
        taken, self._kept = self._kept[:cut], self._kept[cut:]
        return taken

    def _undecided(self) -> int:
        """Return how many characters at the end could still become a stop string."""
        longest = min(len(self._kept), max(map(len, self._stop), default=0))
        for length in range(longest, 0, -1):
            if any(text.startswith(self._kept[-length:]) for text in self._stop):
                return length
        return 0

"""Text to ids and back, by the model's own tokenizer. Immutable after construction, usable from any thread.

Control-token spellings inside user or tool content must not become control tokens. `protect` puts a private-use
character in the place of each spelling before rendering; `encode` puts the spelling back and encodes it with a
copy of the tokenizer that knows no added tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Sequence

import numpy as np
from tokenizers import Tokenizer

from sidecar.tito.errors import MessageError
from sidecar.tito.records import Ids
from sidecar.tito.spellings import any_of

_PROTECTED = re.compile("[\U000f0000-\U000f0fff]")
_FIRST_PROTECTED = 0xF0000
_MOST_PROTECTED = 0x1000


class Protection:
    """The spellings taken out of one request's contents; one object per rendering.

    `taken` are the private-use characters that stand in the rendered text by themselves (a reply, a tool's
    description may hold any): none of them becomes a placeholder."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._characters: dict[str, str] = {}
        self._spellings: dict[str, str] = {}
        self._free = (chr(_FIRST_PROTECTED + n) for n in range(_MOST_PROTECTED))
        self._taken = taken
        self.count = 0
        """Occurrences replaced."""

    def character(self, spelling: str) -> str:
        """The private-use character that stands for `spelling` in this rendering. Raises `MessageError` if there
        are too many different ones."""
        self.count += 1
        known = self._characters.get(spelling)
        if known is None:
            known = next((character for character in self._free if character not in self._taken), None)
            if known is None:
                raise MessageError(
                    f"messages hold more than {_MOST_PROTECTED} different control-token spellings and characters "
                    "from U+F0000 to U+F0FFF; send fewer of them",
                    "messages",
                )
            self._characters[spelling], self._spellings[known] = known, spelling
        return known

    def stands_in(self, text: str) -> bool:
        """Whether `text` holds a placeholder."""
        return any(match.group() in self._spellings for match in _PROTECTED.finditer(text))

    def restore(self, text: str) -> str:
        """`text` with every placeholder replaced by its spelling."""
        return _PROTECTED.sub(lambda match: self._spellings.get(match.group(), match.group()), text)


def private_use(text: str) -> set[str]:
    """The characters of `text` that could be mistaken for placeholders."""
    return set(_PROTECTED.findall(text))


class Codec:
    """`vocab_size` bounds the ids an engine accepts; `control` maps each added token's id to its spelling.

    `sha256` identifies the tokenizer: the hash of its state as `Tokenizer.to_str` gives it, which holds all that
    decides ids. It is the same in every process, however `tokenizer.json` is laid out, and for tokenizers 0.21.0
    and 0.23.3 (eight real ones).

    Not every added token is a control token: Gemma adds its runs of newlines, HTML tags and unused entries, which
    are text like any other. A control token is special, or no entry of the vocabulary below the added ones, or
    spelled in `chat_template`."""

    def __init__(self, tokenizer: Tokenizer, chat_template: str = "") -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.control: dict[int, str] = {index: token.content for index, token in added.items()}
        self.special: frozenset[int] = frozenset(index for index, token in added.items() if token.special)
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1  # ids may have gaps
        self._ids = {spelling: index for index, spelling in self.control.items()}
        self._tokenizer = tokenizer
        state = tokenizer.to_str()
        self.sha256 = hashlib.sha256(state.encode()).hexdigest()
        description = json.loads(state)
        description["added_tokens"] = []
        decoder = description.get("decoder") or {}
        self.decodes_apart: bool = decoder.get("type") == "ByteLevel"
        """Ids decode to the same text whatever precedes them: their bytes are joined, and nothing else."""
        self._plain = Tokenizer.from_str(json.dumps(description))
        self._boundary = re.compile(f"({any_of(self._ids)})") if self._ids else None
        control = any_of(
            token.content
            for token in added.values()
            if token.content.strip()
            and (token.special or self._plain.token_to_id(token.content) is None or token.content in chat_template)
        )
        # Our own private-use characters are protected too, so that content cannot forge a placeholder.
        self._protect = re.compile("|".join(filter(None, [control, _PROTECTED.pattern])))
        self._control = re.compile(control) if control else None
        self._begins_texts = self._begins_texts_otherwise()

    def token_id(self, spelling: str) -> int | None:
        """Id of the added token spelled so, or of a vocabulary entry of that name; None if there is none."""
        found = self._ids.get(spelling)
        return found if found is not None else self._tokenizer.token_to_id(spelling)

    def protect(self, content: str, protection: Protection) -> str:
        """`content` with placeholders in the place of control-token spellings."""
        return self._protect.sub(lambda match: protection.character(match.group()), content)

    def control_at(self, text: str, position: int) -> str | None:
        """The control token that begins there."""
        match = self._control.match(text, position) if self._control is not None else None
        return match.group() if match is not None else None

    def encode(self, text: str, protection: Protection | None = None, *, after: int | None = None) -> Ids:
        """Ids of rendered text, shape [n]; never adds BOS or EOS. Placeholders become ordinary text.

        `after` is the control token that stands before the text: SentencePiece begins a text otherwise than it goes
        on behind a control token, and some control tokens swallow the white space behind them."""
        if after is not None and after in self.control:
            ids = self._encode_parts(self.control[after] + text, protection)
            if len(ids) and ids[0] == after:
                return ids[1:]
        return self._encode_parts(text, protection)

    def _encode_parts(self, text: str, protection: Protection | None) -> Ids:
        if protection is None or not protection.count or self._boundary is None:
            return self._encode(self._tokenizer, text)
        pieces: list[Ids] = []
        run = ""  # text between protected pieces is encoded as one, as it would be without any of them
        for piece in self._boundary.split(text):
            if not protection.stands_in(piece):
                run += piece
                continue
            pieces.append(self._encode(self._tokenizer, run))
            within = any(len(before) for before in pieces)
            pieces.append(self._encode_plain(protection.restore(piece), within=within))
            run = ""
        pieces.append(self._encode(self._tokenizer, run))
        return np.concatenate(pieces)

    def _encode_plain(self, text: str, *, within: bool) -> Ids:
        """`text` without control tokens. `within` a text SentencePiece has nothing to begin."""
        if within and self._begins_texts:
            line_end = self._encode(self._plain, "\n")
            ids = self._encode(self._plain, f"\n{text}")
            if np.array_equal(ids[: len(line_end)], line_end):
                return ids[len(line_end) :]
        return self._encode(self._plain, text)

    def _begins_texts_otherwise(self) -> bool:
        """Whether the tokenizer begins a text otherwise than it goes on behind a control token."""
        for index in sorted(self.special):
            ids = self._encode(self._tokenizer, self.control[index] + "x")
            if len(ids) and ids[0] == index:
                return not np.array_equal(ids[1:], self._encode(self._plain, "x"))
        return False

    @staticmethod
    def _encode(tokenizer: Tokenizer, text: str) -> Ids:
        # a batch of one: it works out no offsets, which saves a tenth, and releases the GIL while it works
        encoding = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
        return np.asarray(encoding.ids, dtype=np.int32)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included; bytes that are no UTF-8 become U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

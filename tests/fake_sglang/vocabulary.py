"""Ids and text of the stand-in's model.

Promise: says which ids exist, which end a generation, and, when a tokenizer was given, turns text into ids
and back. Without a tokenizer the stand-in behaves like a server started with `--skip-tokenizer-init`: replies
carry no text.
Concurrency: read-only after construction.
"""

import random
from collections.abc import Sequence

from tokenizers import Tokenizer

from tests.fake_sglang.script import ScriptError


class Vocabulary:
    """`size` ids from 0; `eos_token_ids` end a generation on their own (unless `ignore_eos`)."""

    def __init__(
        self,
        size: int | None,
        eos_token_ids: Sequence[int],
        tokenizer: Tokenizer | None,
        tokenizer_path: str | None,
    ) -> None:
        self.tokenizer = tokenizer or (Tokenizer.from_file(tokenizer_path) if tokenizer_path else None)
        known = size if self.tokenizer is None else self.tokenizer.get_vocab_size()
        if known is None:
            raise ScriptError("vocab_size is missing; give it, or a tokenizer")
        self.size: int = known if size is None else size
        self.eos_token_ids = tuple(eos_token_ids)
        self._sampled_below = min(self.size, known)
        added = self.tokenizer.get_added_tokens_decoder() if self.tokenizer else {}
        self._not_sampled = {*added, *self.eos_token_ids}

    def contains(self, token_id: int) -> bool:
        """Whether the embedding table has a row for this id."""
        return 0 <= token_id < self.size

    def random_id(self, rng: random.Random) -> int:
        """An ordinary id: no added (special) token and no end-of-sequence id."""
        for _ in range(10_000):
            token_id = rng.randrange(self._sampled_below)
            if token_id not in self._not_sampled:
                return token_id
        raise ScriptError(f"vocab_size {self.size} has hardly any ordinary ids; give a larger vocabulary")

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, nothing added; special tokens are recognised by their spelling."""
        if self.tokenizer is None:
            raise ScriptError(f"text {text[:40]!r} needs a tokenizer; give FakeSGLang(tokenizer=...) or use ids")
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of `ids`; needs a tokenizer."""
        if self.tokenizer is None:
            raise ScriptError("decoding needs a tokenizer; give FakeSGLang(tokenizer=...)")
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

"""A `tokenizers.Tokenizer` from byte strings with ranks, as tiktoken's, Mistral's and Moonshot's vocabularies are.

Such a vocabulary names no merges: a pair merges if its bytes are an entry, the lowest rank first. So an entry's own
merge is what remains of its bytes once every pair of a lower rank has merged. A few entries (in GLM's vocabulary
1,072) come before their own parts: those merge from whatever parts stand there.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers


def tokenizer_from_ranks(ids: Mapping[bytes, int], pattern: str, special: Mapping[str, int]) -> Tokenizer:
    """`ids` of byte strings, the lower the earlier merged; `special` tokens with the ids that they have to get.

    A piece that is an entry as a whole is taken as it is, whether or not merges lead there."""
    spelled = {token: "".join(map(_LETTERS.__getitem__, token)) for token in ids}
    merges = [pair for token in sorted(ids, key=ids.__getitem__) for pair in _merges(token, ids)]
    vocabulary = {spelled[token]: index for token, index in ids.items()} | dict(special)
    model = models.BPE(
        vocab=vocabulary,
        merges=[(spelled[left], spelled[right]) for left, right in merges],
        ignore_merges=True,
    )
    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = sorted(special, key=special.__getitem__)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    wrong = [token for token in added if tokenizer.token_to_id(token) != special[token]]
    assert not wrong, wrong
    return tokenizer


def _merges(token: bytes, ids: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    parts = [token[at : at + 1] for at in range(len(token))]
    own = ids[token]
    while len(parts) > 2:
        ranks = [ids.get(left + right, own) for left, right in pairwise(parts)]
        lowest = min(ranks)
        if lowest >= own:
            splits = [(token[:at], token[at:]) for at in range(1, len(token))]
            return [(left, right) for left, right in splits if left in ids and right in ids]
        at = ranks.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [(parts[0], parts[1])] if len(parts) == 2 else []


def _letters() -> dict[int, str]:
    """The printable character that byte-level BPE writes for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


_LETTERS = _letters()

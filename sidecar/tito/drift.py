"""What decoding replies and encoding them again would have changed: the reason why this program exists. Pure.

    sampled    ... 68249 大大的 | 23582 一块 ...      each id with its own logprob
    encoded    ... 19983 大大 | 110697 的一块 ...     the same text, other ids: logprobs and masks fit no longer

A reply is encoded together with the end of its prompt, as it would be inside a conversation: Qwen3 merges the
prompt's last newline with one that the model samples first. Time and memory are linear in the reply's tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from adapters.models.marks import Marks
from sidecar.tito.codec import Codec
from sidecar.tito.records import Ids
from sidecar.tito.reply_text import Detokenizer

_LONGEST_SEAM = 256
"""Prompt ids searched backwards for a control token. Generation prompts are a few ids long."""


@dataclass(frozen=True, slots=True)
class SampledReply:
    """One reply as it was sampled. `context_ids` are the ids before it, or at least the last of them; `trained`
    says whether its tokens train."""

    step_id: str
    context_ids: Sequence[int] | Ids
    output_ids: Sequence[int] | Ids
    trained: bool


@dataclass(frozen=True, slots=True)
class Stretch:
    """The ids `sampled` would be the ids `encoded`; both read `text`.

    `position` is the index of the first of them in `output_ids`, negative if the stretch begins in the prompt."""

    position: int
    sampled: tuple[int, ...]
    encoded: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class ReplyDrift:
    """What would have become of one reply; all counts are of sampled tokens.

    `changed` would be other ids. `misaligned` would be other ids or stand at another position of the reply, so
    that a logprob or mask kept by position belongs to another token; earlier replies' shifts are not counted."""

    step_id: str
    trained: bool
    sampled: int
    changed: int
    misaligned: int
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class DriftTotals:
    """Sums over replies. Counts named `*_affected` are of misaligned tokens."""

    turns: int
    turns_affected: int
    tokens_sampled: int
    tokens_changed: int
    logprobs_misaligned: int
    tokens_trained: int
    trained_tokens_affected: int


def find_drift(codec: Codec, reply: SampledReply) -> ReplyDrift:
    """Compare a reply's ids with those of its text."""
    seam = _seam(codec, reply.context_ids)
    start = len(seam)
    sampled = [*seam, *map(int, reply.output_ids)]
    encoded = codec.encode(codec.decode(sampled)).tolist()
    found: list[Stretch] = []
    changed = moved = shift = last = 0
    for i, a, j, b in _differences(codec, sampled, encoded):
        if a < start or i < a == start:
            continue  # in the prompt alone: not what the model sampled
        if shift:
            moved += i - last
        changed += a - max(i, start)
        shift += (b - j) - (a - i)
        last = a
        ours, theirs = sampled[i:a], encoded[j:b]
        found.append(Stretch(i - start, tuple(ours), tuple(theirs), codec.decode(ours or theirs)))
    if shift:
        moved += len(sampled) - last
    return ReplyDrift(reply.step_id, reply.trained, len(sampled) - start, changed, changed + moved, tuple(found))


def total_drift(replies: Iterable[ReplyDrift]) -> DriftTotals:
    """Sums over replies."""
    drifts = list(replies)
    trained = [drift for drift in drifts if drift.trained]
    return DriftTotals(
        turns=len(drifts),
        turns_affected=sum(bool(drift.stretches) for drift in drifts),
        tokens_sampled=sum(drift.sampled for drift in drifts),
        tokens_changed=sum(drift.changed for drift in drifts),
        logprobs_misaligned=sum(drift.misaligned for drift in drifts),
        tokens_trained=sum(drift.sampled for drift in trained),
        trained_tokens_affected=sum(drift.misaligned for drift in trained),
    )


def _seam(codec: Codec, context_ids: Sequence[int] | Ids) -> list[int]:
    """The end of the prompt that is encoded in one with the reply: from its last control token on, which nothing
    merges with. Empty if there is none near."""
    tail = [int(index) for index in context_ids[-_LONGEST_SEAM:]]
    for position in range(len(tail) - 1, -1, -1):
        if tail[position] in codec.control:
            return tail[position:]
    return []


Difference = tuple[int, int, int, int]
"""`(i, a, j, b)`: `sampled[i:a]` would be `encoded[j:b]`."""


def _differences(codec: Codec, sampled: list[int], encoded: list[int]) -> Iterator[Difference]:
    """The shortest differing stretches between places at which both sequences have come equally far in the text."""
    if sampled == encoded:
        return
    for (i, j), (a, b) in pairwise(_common_places(codec, sampled, encoded)):
        while i < a and j < b and sampled[i] == encoded[j]:
            i, j = i + 1, j + 1
        while i < a and j < b and sampled[a - 1] == encoded[b - 1]:
            a, b = a - 1, b - 1
        if i < a or j < b:
            yield i, a, j, b


def _common_places(codec: Codec, sampled: list[int], encoded: list[int]) -> list[tuple[int, int]]:
    """Pairs of token counts after which both sequences stand at the same place of the text, in order.

    Where encoding changes the text itself (a normaliser does) only the text before the first and after the last
    change is comparable."""
    marks = Marks(codec.control, frozenset())
    ours, our_text = _text_ends(codec, marks, sampled)
    theirs, their_text = _text_ends(codec, marks, encoded)
    same = _same_start(our_text, their_text)
    after = _same_start(our_text[same:][::-1], their_text[same:][::-1])

    def places(ends: dict[int, int], length: int) -> dict[int, int]:
        """Place -> token count; places of the text's end count backwards from it."""
        return {
            end if end <= same else end - length - 1: count
            for end, count in ends.items()
            if end <= same or length - end <= after
        }

    our_places, their_places = places(ours, len(our_text)), places(theirs, len(their_text))
    shared = [(count, their_places[place]) for place, count in our_places.items() if place in their_places]
    return [(0, 0), *shared, (len(sampled), len(encoded))]


def _same_start(ours: str, theirs: str) -> int:
    """Characters at the start of both."""
    shorter = min(len(ours), len(theirs))
    return next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), shorter)


def _text_ends(codec: Codec, marks: Marks, ids: list[int]) -> tuple[dict[int, int], str]:
    """Characters so far -> tokens so far, for every token that ends with a character; and the text, with control
    tokens as `marks` shows them: spelled out."""
    detokenizer = Detokenizer(codec, marks)
    ends: dict[int, int] = {}
    pieces: list[str] = []
    length = 0
    for count, index in enumerate(ids, 1):
        pieces.append(marks.display(detokenizer.push((index,))))
        length += len(pieces[-1])
        if not detokenizer.pending:
            ends.setdefault(length, count)
    pieces.append(marks.display(detokenizer.flush()))
    return ends, "".join(pieces)

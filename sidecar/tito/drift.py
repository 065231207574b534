"""What decoding replies and encoding them again would have changed: the reason why this program exists. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.tito.codec import Codec


@dataclass(frozen=True, slots=True)
class Drift:
    """One reply whose ids do not survive: `sampled` and `encoded` from the first difference on, `text` of both."""

    step_id: str
    position: int
    sampled: tuple[int, ...]
    encoded: tuple[int, ...]
    text: str


def find_drift(codec: Codec, outputs: Iterable[tuple[str, list[int]]]) -> list[Drift]:
    """Every `(step_id, output_ids)` whose text encodes to other ids, with the shortest differing stretch."""
    found = []
    for step_id, sampled in outputs:
        encoded = codec.encode(codec.decode(sampled)).tolist()
        if encoded != sampled:
            found.append(_difference(codec, step_id, sampled, encoded))
    return found


def _difference(codec: Codec, step_id: str, sampled: list[int], encoded: list[int]) -> Drift:
    start = 0
    while start < min(len(sampled), len(encoded)) and sampled[start] == encoded[start]:
        start += 1
    ours, theirs = sampled[start:], encoded[start:]
    while ours and theirs and ours[-1] == theirs[-1]:
        ours.pop()
        theirs.pop()
    return Drift(step_id, start, tuple(ours), tuple(theirs), codec.decode(ours or theirs))

"""The weight versions of a segment's tokens as runs: a sequence of strings that holds each run once.

`full_versions` has one string per token and only a few that differ; as a list it is the largest part of a segment.
Immutable and pure; safe everywhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from typing import Any, overload

import numpy as np
import numpy.typing as npt

CONTEXT_VERSION = "-1"
"""Version of every token that no policy sampled."""


class TokenVersions(Sequence[str]):
    """One version per token. Equal to any sequence of the same strings."""

    def __init__(self, runs: Iterable[tuple[str, int]]) -> None:
        """`runs` are (version, number of tokens) in order; neighbours of one version become one run."""
        self.runs: list[tuple[str, int]] = []
        for version, length in runs:
            if length and self.runs and self.runs[-1][0] == version:
                self.runs[-1] = (version, self.runs[-1][1] + length)
            elif length:
                self.runs.append((version, length))
        self._ends: list[int] = np.cumsum([length for _, length in self.runs], dtype=np.int64).tolist()

    @classmethod
    def of(cls, versions: Sequence[str]) -> TokenVersions:
        """From one string per token."""
        if isinstance(versions, TokenVersions):
            return versions
        return cls((version, sum(1 for _ in run)) for version, run in groupby(versions))

    @classmethod
    def from_spans(cls, length: int, spans: Iterable[Mapping[str, Any]]) -> TokenVersions:
        """From runs of sampled tokens as `{start, end, version}`, in order; what is between them is context.
        Raises `ValueError` where they overlap or go beyond `length`."""
        runs: list[tuple[str, int]] = []
        at = 0
        for span in spans:
            if not at <= span["start"] <= span["end"] <= length:
                raise ValueError(f"version span {dict(span)} does not follow {at} within {length} tokens")
            runs += [(CONTEXT_VERSION, span["start"] - at), (span["version"], span["end"] - span["start"])]
            at = span["end"]
        return cls([*runs, (CONTEXT_VERSION, length - at)])

    @property
    def spans(self) -> list[dict[str, Any]]:
        """Maximal runs of sampled tokens of one version as `{start, end, version}`, end exclusive."""
        ends = zip(self.runs, self._ends, strict=True)
        return [
            {"start": end - length, "end": end, "version": version}
            for (version, length), end in ends
            if version != CONTEXT_VERSION
        ]

    def mask(self, version: str) -> npt.NDArray[np.bool_]:
        """Which tokens have this version, shape [n]."""
        lengths = [length for _, length in self.runs]
        return np.repeat(np.array([one == version for one, _ in self.runs], dtype=bool), lengths)

    def among(self, chosen: npt.NDArray[np.bool_]) -> list[str]:
        """The distinct versions of the chosen tokens, in order of their first one. `chosen` has shape [n]."""
        found: dict[str, None] = {}
        for (version, length), end in zip(self.runs, self._ends, strict=True):
            if version not in found and chosen[end - length : end].any():
                found[version] = None
        return list(found)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> TokenVersions: ...

    def __getitem__(self, index: int | slice) -> str | TokenVersions:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return TokenVersions.of(list(self)[index])
            ends = zip(self.runs, self._ends, strict=True)
            parts = ((v, min(end, stop) - max(end - length, start)) for (v, length), end in ends)
            return TokenVersions((version, max(length, 0)) for version, length in parts)
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"token {index} of {len(self)}")
        return self.runs[bisect_right(self._ends, at)][0]

    def __iter__(self) -> Iterator[str]:
        for version, length in self.runs:
            yield from repeat(version, length)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and self.runs == TokenVersions.of(other).runs

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return f"TokenVersions({self.runs!r})"

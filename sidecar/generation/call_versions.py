"""Which weights sampled the tokens of one engine call, as far as the engine told. One call, one object; no I/O.

SGLang gives spans over a call's output from 0.5.19 on, at its end. Older servers, and streams that break, name one
version with every chunk: it is true of all tokens only if it was the same throughout.
"""

from __future__ import annotations

from adapters.engines.base import ReportedVersions
from adapters.engines.sglang import ReplyReader


class CallVersions:
    """`known` is the version that was known when the call was sent."""

    def __init__(self, known: str | None) -> None:
        self._known = known
        self._first: str | None = None
        self._spans: ReportedVersions | None = None
        self.changed = False
        """More than one version may have sampled the call's tokens."""

    def read(self, reader: ReplyReader) -> None:
        """Look at what the newest chunk said."""
        named = reader.weight_version
        if reader.versions.spans:
            self._spans = reader.versions
            self.changed = len({version for _, _, version in reader.versions.spans}) > 1
        elif named is not None and self._first is None:
            self._first = named
            # Several tokens at once may have been sampled on both sides of a change that nobody had seen yet, and
            # what an abort returns before it. A first token that comes alone is told as it is sampled.
            aborted = reader.finish is not None and reader.finish.kind == "abort"
            late = len(reader.output_ids) > 1 or (aborted and reader.output_ids)
            self.changed = bool(late) and self._known not in (None, named)
        else:
            self.changed = self.changed or named != self._first

    @property
    def reported(self) -> ReportedVersions:
        """Spans, or one name, or nothing if it changed without being told where."""
        if self._spans is not None:
            return self._spans
        return ReportedVersions(single=None if self.changed else self._first)

"""An SSE stream of JSON objects, split from raw chunks: aiohttp's line reader stops at 512 KB.

Pure; one object per stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from adapters.engines.base import ContractError
from adapters.engines.routed_experts import load_event

_EVENT_LIMIT = 2**30
"""Bytes of one SSE event; a cumulative stream repeats all ids and logprobs in each, and the routed experts of 128K
tokens are 350 MB."""


class EventSplitter:
    """`done` once `[DONE]` came."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.done = False

    def feed(self, data: bytes) -> Iterable[dict[str, Any]]:
        """Payloads that `data` completes. Raises `ContractError` for what is no JSON object."""
        if not self._buffer and data.startswith(b"data: {") and data.find(b"\n\n") == len(data) - 2:
            return (_payload(data[6:]),)  # one event, as it mostly is
        return self._split(data)

    def _split(self, data: bytes) -> Iterator[dict[str, Any]]:
        searched = max(0, len(self._buffer) - 1)
        self._buffer += data
        while not self.done and (end := self._buffer.find(b"\n\n", searched)) >= 0:
            event = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            searched = 0
            yield from self._read(event)
        if len(self._buffer) > _EVENT_LIMIT:
            raise ContractError(f"the engine sent an event of more than {_EVENT_LIMIT} bytes")

    def _read(self, event: bytes) -> Iterator[dict[str, Any]]:
        if not event.startswith(b"data:"):
            return
        data = event[5:].strip()
        if data == b"[DONE]":
            self.done = True
        else:
            yield _payload(data)


def _payload(data: bytes) -> dict[str, Any]:
    try:
        parsed = load_event(data)
    except orjson.JSONDecodeError as error:
        raise ContractError(f"the engine sent an event that is no JSON: {data[:100]!r}") from error
    if not isinstance(parsed, dict):
        raise ContractError(f"the engine sent an event that is no object: {data[:100]!r}")
    return parsed

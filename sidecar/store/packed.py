"""Values as they are stored: plain, or as one zstd frame where that pays.

Promise: `unpack(pack(data)) == data` for all bytes. Whether a value is packed can be told from it alone, so rows
written before this was there are read as they are: a packed value begins with zstd's magic number, and data that
happens to begin with it is always packed. Its length is no multiple of four, so a program that knows nothing of
this fails to read it as numbers instead of reading wrong ones. One thread at a time uses a `Packer`.

Measured on tool conversations (benchmarks/store.py): ids become 0.37 to 0.51 of their size, messages 0.32, at
10 to 50 us; logprobs 0.98 and are left alone. Higher levels cost twenty times as much for a twentieth.
"""

from __future__ import annotations

import zstandard

_MAGIC = zstandard.FRAME_HEADER
_LEVEL = 1
_LEAST = 128
"""Bytes below which nothing is gained."""


class Packer:
    """zstd's working memory, which costs more to make than a small value to pack."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self._decompressor = zstandard.ZstdDecompressor()

    def pack(self, data: bytes) -> bytes:
        """`data`, or a frame of it that is smaller by an eighth or more."""
        marked = data[:4] == _MAGIC
        if len(data) < _LEAST and not marked:
            return data
        frame = self._compressor.compress(data)
        if len(frame) % 4 == 0:
            frame += b"\0"  # behind its end, where zstd does not look
        return frame if marked or len(frame) <= len(data) - len(data) // 8 else data

    def unpack(self, stored: bytes) -> bytes:
        """What `pack` was given. Raises `ValueError` for a frame that is damaged."""
        if stored[:4] != _MAGIC:
            return stored
        try:
            return self._decompressor.decompress(stored)
        except zstandard.ZstdError as error:
            raise ValueError(f"a packed value of {len(stored)} bytes is damaged: {error}") from None

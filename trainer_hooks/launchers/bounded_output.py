"""The beginning and the end of what a program prints, in bounded memory. One writer; not thread-safe."""

from __future__ import annotations

from collections import deque


class BoundedOutput:
    """Keeps the first quarter of `limit` bytes and the last three quarters, and counts what it leaves out."""

    def __init__(self, limit: int) -> None:
        self._head = bytearray()
        self._head_limit = limit // 4
        self._tail: deque[bytes] = deque()
        self._tail_limit = limit - self._head_limit
        self._tail_size = 0
        self._left_out = 0

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        rest = data[room:]
        if not rest:
            return
        self._tail.append(rest)
        self._tail_size += len(rest)
        while self._tail_size > self._tail_limit:
            oldest = self._tail.popleft()
            kept = oldest[min(len(oldest), self._tail_size - self._tail_limit) :]
            self._tail_size -= len(oldest) - len(kept)
            self._left_out += len(oldest) - len(kept)
            if kept:
                self._tail.appendleft(kept)

    def text(self) -> str:
        """What was kept, bytes that are no UTF-8 replaced, with a line where some are missing."""
        head, tail = self._head.decode(errors="replace"), b"".join(self._tail).decode(errors="replace")
        if not self._left_out:
            return (bytes(self._head) + b"".join(self._tail)).decode(errors="replace")
        return f"{head}\n[... {self._left_out} bytes left out ...]\n{tail}"

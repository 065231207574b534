"""An event loop whose clock can be put forward: back-offs, repeats and windows pass without being waited for.

Sockets and threads run in real time; only timers see the skipped seconds. One loop, one thread.
"""

import asyncio


class SkippingLoop(asyncio.SelectorEventLoop):
    """`time()` is the real clock and all that was skipped, in seconds."""

    def __init__(self) -> None:
        self._skipped = 0.0
        super().__init__()

    def time(self) -> float:
        """Seconds, never backwards."""
        return super().time() + self._skipped

    def skip(self, seconds: float) -> None:
        """Every timer that is due within `seconds` runs with the loop's next turn, in order."""
        self._skipped += seconds

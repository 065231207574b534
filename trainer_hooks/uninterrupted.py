"""Work that runs to its end although its caller is cancelled: clean-up, mostly. For asyncio; no state."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def uninterrupted[T](work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which must be bounded in time. A cancellation that came meanwhile is raised after
    it has ended, and then an error of `work` is its context."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:
            break  # the task's own, raised below
    if cancelled is not None and not task.cancelled():
        raise cancelled from task.exception()
    return task.result()

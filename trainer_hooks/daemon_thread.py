"""A blocking function of the user's, awaited: each call has a thread of its own.

Not the loop's thread pool: some slow judges would fill it and hold up everything else that uses it, and the
interpreter would wait for them at its end. For asyncio; no shared state.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any


async def in_daemon_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function(*arguments)` returns or raises. Cancelled, it leaves the thread to itself."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(value)
        else:
            outcome.set_exception(error)

    def work() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = function(*arguments)
        except StopIteration as stop:  # a future cannot hold it
            error = RuntimeError(f"{function!r} raised {stop!r}")
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name=f"calls {function!r}", daemon=True).start()
    return await outcome

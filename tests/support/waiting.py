"""Waiting for a state that announces itself nowhere; where there is an event, wait for that instead."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

LIVENESS = 30.0
"""Seconds after which a wait in a test has failed; generous, since the machine may be busy."""


async def until(condition: Callable[[], Any], what: str) -> None:
    """Until `condition()` (or what it awaits) is true. `AssertionError` names `what` when it never is."""
    try:
        async with asyncio.timeout(LIVENESS):
            while True:
                found = condition()
                if await found if inspect.isawaitable(found) else found:
                    return
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"never came: {what}") from None

"""The open sessions that this process holds, and how one that is not used leaves memory.

Promise: there is never a second object of a session while somebody still holds the first. One that is unloaded is
forgotten only when its last holder lets go; until then whoever asks for it gets the same object back. So a request
that arrives while its session is unloaded, or that held it all the time, goes on with what is true. One event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, MutableMapping
from weakref import WeakValueDictionary

from sidecar.sessions.session import Session

_AT_ONCE = 100
"""Sessions that are flushed together."""


class SessionMemory(MutableMapping[str, Session]):
    """Sessions by id. Looking one up counts as using it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loaded: dict[str, Session] = {}
        self._used: dict[str, float] = {}
        self._unloaded: WeakValueDictionary[str, Session] = WeakValueDictionary()

    def __getitem__(self, session_id: str) -> Session:
        session = self._loaded.get(session_id)
        if session is None:
            session = self._loaded[session_id] = self._unloaded.pop(session_id)
        self._used[session_id] = self._clock()
        return session

    def __setitem__(self, session_id: str, session: Session) -> None:
        self._unloaded.pop(session_id, None)
        self._loaded[session_id] = session
        self._used[session_id] = self._clock()

    def __delitem__(self, session_id: str) -> None:
        held = self._unloaded.pop(session_id, None)
        self._used.pop(session_id, None)
        if self._loaded.pop(session_id, None) is None and held is None:
            raise KeyError(session_id)

    def __contains__(self, session_id: object) -> bool:
        """Without using it."""
        return session_id in self._loaded or session_id in self._unloaded

    def __iter__(self) -> Iterator[str]:
        return iter([*self._loaded, *self._unloaded])

    def __len__(self) -> int:
        return len(self._loaded) + len(self._unloaded)

    def values(self) -> list[Session]:  # type: ignore[override]
        """All of them, those that somebody still holds included, without using them."""
        return [*self._loaded.values(), *self._unloaded.values()]

    def under_way(self) -> int:
        """Steps that run or wait for a retry."""
        return sum(len(session.runs) + len(session.waiting) for session in self.values())

    async def unload_unused(self, seconds: float) -> int:
        """Let sessions leave memory that nobody used for so long; how many did."""
        unloaded, unused = 0, self.unused(seconds)
        for at in range(0, len(unused), _AT_ONCE):
            part = unused[at : at + _AT_ONCE]
            failures = await asyncio.gather(*(session.flush() for session in part), return_exceptions=True)
            for session, failure in zip(part, failures, strict=True):
                unloaded += failure is None and self.unload(session, seconds)
        return unloaded

    def unused(self, seconds: float) -> list[Session]:
        """Loaded sessions that nobody asked for, and in which nothing was under way, for so long."""
        now = self._clock()
        for session in self._loaded.values():
            if not session.idle:
                self._used[session.session_id] = now
        return [session for one, session in self._loaded.items() if now - self._used[one] >= seconds]

    def idle_since(self) -> list[Session]:
        """Loaded sessions in which nothing is under way, in the order in which they were used last."""
        idle = [session for session in self._loaded.values() if session.idle]
        return sorted(idle, key=lambda session: self._used[session.session_id])

    def unload(self, session: Session, seconds: float) -> bool:
        """Forget the session, if it still is `unused` and all of it is in the store; False if it is not."""
        session_id = session.session_id
        if self._loaded.get(session_id) is not session or not (session.idle and session.flushed):
            return False
        if self._clock() - self._used[session_id] < seconds:
            return False
        self._unloaded[session_id] = self._loaded.pop(session_id)
        del self._used[session_id]
        return True

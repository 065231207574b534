"""`sessions rm`: takes sessions out of the store that no live sidecar holds open. Writes beside a running sidecar,
in transactions of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from sidecar.store import expiry, open_store
from sidecar.store.expiry import Owned
from sidecar.store.protocol import Store, StoreError


async def remove_sessions(
    url: str, session_ids: Sequence[str], *, unread_too: bool, say: Callable[[str], None]
) -> None:
    """Remove them one after the other, and say so. Raises `StoreError` at the first that must stay."""
    await _check_there(url)
    store = open_store(url)
    await store.start()
    try:
        for session_id in session_ids:
            say(await _remove(store, session_id, unread_too))
    finally:
        await store.close()


async def _check_there(url: str) -> None:
    """A store that does not exist is not made."""
    store = open_store(url, read_only=True)
    await store.start()
    await store.close()


async def _remove(store: Store, session_id: str, unread_too: bool) -> str:
    now = time.time()
    was = await store.transact(
        f"removal of session {session_id}",
        partial(expiry.remove, session_id=session_id, now=now, unread_too=unread_too),
    )
    if was is None:
        raise StoreError(f"session {session_id!r} is not in the store; check the id, --store and --state-dir")
    if isinstance(was, Owned):
        where = f" --control-url {was.control_url}" if was.control_url else ""
        raise StoreError(
            f"session {session_id!r} is open in a running sidecar ({was.sidecar_id}); finalize or discard it "
            f"there: tito-sidecar sessions discard {session_id}{where}"
        )
    done = False
    while not done:
        done = await store.transact(
            f"clearing of session {session_id}", partial(expiry.clear, session_id=session_id, now=now)
        )
    if was in ("discarded", "expired"):
        return f"{session_id}: was {was} already"
    return f"{session_id}: removed (it was {was}); calls of it are refused until its tombstone is gone"

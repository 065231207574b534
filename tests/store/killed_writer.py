"""A process that stores steps and prints each one that was acknowledged, until it is killed.

Arguments: store URL, name of the round. Prints `session step` lines.
"""

from __future__ import annotations

import asyncio
import os
import sys

import numpy as np

from sidecar.store import open_store
from sidecar.store.protocol import Store
from tests.store.samples import session, step

WRITERS = 8


def ids_of(sequence: int) -> np.ndarray:
    """The ids that step `sequence` of any session has: several pages of the database."""
    return np.arange(sequence, sequence + 3000, dtype=np.int32)


async def write_steps(store: Store, session_id: str) -> None:
    await store.save_session(session(session_id))
    for sequence in range(1_000_000):
        record = step(session_id, f"{sequence}", sequence, output_ids=ids_of(sequence))
        await store.save_step(record, {sequence.to_bytes(16): session_id.encode()})
        os.write(1, f"{session_id} {sequence}\n".encode())
        store.mark_delivered(session_id, f"{sequence}")


async def main(url: str, name: str) -> None:
    store = open_store(url)
    await store.start()
    await asyncio.gather(*(write_steps(store, f"{name}-{index}") for index in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

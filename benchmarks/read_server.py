"""The trajectory routes alone over one store, for `read_cost`: what a read costs, and nothing else.

`python -m benchmarks.read_server STORE_URL PORT`; one event loop, until it is terminated.
"""

from __future__ import annotations

import asyncio
import sys

from starlette.applications import Starlette

from sidecar.control.trajectories import TrajectoryRoutes
from sidecar.store import open_store
from sidecar.web.listener import Listener


async def serve(store_url: str, port: int) -> None:
    """Until the process ends."""
    store = open_store(store_url)
    await store.start()
    listener = Listener(Starlette(routes=TrajectoryRoutes(store).routes()), f"127.0.0.1:{port}", "PORT")
    await listener.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))

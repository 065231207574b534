"""The real routers in front of stand-in engines: smg and sglang-router, as their wheels on PyPI have them.

Their binaries are unpacked, not installed; each runs as a process of its own, on free loopback ports.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.support.pypi import pypi_package

ROUTERS = {"smg": ("smg", "1.13.0"), "sglang-router": ("sglang_router", "0.3.2")}
"""Name on PyPI -> its module and version."""
POLICIES = {"smg": "consistent_hashing", "sglang-router": "manual"}
"""The policies that send a session's calls to one worker."""
_START = """
import sys, types
# its debugging balancer in Python wants a web framework, and is not used
sys.modules[MODULE + ".mini_lb"] = types.SimpleNamespace(MiniLoadBalancer=None)
import importlib
importlib.import_module(MODULE + ".launch_router").main()
"""
_STARTING = 90.0


@asynccontextmanager
async def running_router(name: str, log: Path, *workers: str) -> AsyncIterator[str]:
    """The router's URL, once it lists all workers. Skips where the package index cannot be had."""
    module, version = ROUTERS[name]
    paths = [pypi_package(module, version), pypi_package("setproctitle", "1.3.8")]
    port, metrics = _free_ports(2)
    arguments = [
        *("--host", "127.0.0.1", "--port", str(port), "--policy", POLICIES[name]),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)),
        *("--worker-urls", *workers),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", f"MODULE = {module!r}{_START}", *arguments),
            env=environment,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        await _until_ready(url, len(workers), process, log)
        yield url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _until_ready(url: str, workers: int, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(_STARTING), aiohttp.ClientSession() as client:
        while True:
            if process.returncode is not None:
                raise AssertionError(f"the router ended: {_end_of(log)}")
            try:
                async with client.get(f"{url}/workers") as response:
                    listed = (await response.json())["workers"]
                    if len([worker for worker in listed if worker["is_healthy"]]) == workers:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on at the moment; routers take no port 0."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()

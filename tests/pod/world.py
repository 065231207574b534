"""The world outside the pod, as a program: the engine, and servers that nobody redirected should reach.

Promise: each line on stdin is a command, answered by one line of JSON on stdout: `stats`; `hold` (the engine stops
every reply after its first tokens); `release` (and goes on). Arguments: the servers' PEM file, the tokenizer's
directory, the engine's key.
Concurrency: one event loop.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections import Counter
from functools import partial
from pathlib import Path

from tests.fake_sglang import Reply
from tests.pod.namespaces import ENGINE
from tests.support.running import engine_for

TEXT = "one two three four five six seven eight nine ten"
COUNTED: Counter[str] = Counter()


class Echo(asyncio.DatagramProtocol):
    """Sends every datagram back."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        COUNTED["udp"] += 1
        assert isinstance(self.transport, asyncio.DatagramTransport)
        self.transport.sendto(data, addr)


async def answer(kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request as the original server."""
    COUNTED[kind] += 1
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\nconnection: close\r\n\r\noriginal")
    await writer.drain()
    writer.close()


async def main(pem: str, tokenizer: str, key: str) -> None:
    """Until stdin ends."""
    loop = asyncio.get_running_loop()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    for port, context in ((443, tls), (80, None), (9999, None)):
        await asyncio.start_server(partial(answer, f"tcp {port}"), None, port, ssl=context)
    for port in (53, 443, 9999):
        await loop.create_datagram_endpoint(Echo, local_addr=("0.0.0.0", port))
    go_on = asyncio.Event()
    go_on.set()
    async with engine_for(Path(tokenizer), host=ENGINE, port=30000, api_key=key) as engine:
        engine.script = lambda _: Reply(text=TEXT, hold=go_on, hold_after=3)
        print(json.dumps({"ready": engine.url}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line.strip() == "hold":
                go_on.clear()
            elif line.strip() == "release":
                go_on.set()
            calls = Counter(call.path for call in engine.recorder.calls)
            print(json.dumps({"counted": COUNTED, "calls": calls}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

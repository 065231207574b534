"""What clients and networks do to a proxy: it goes on, in bounded memory, and leaves nothing open.

Longer forms, a thousand streams and twenty thousand requests, are in benchmarks/intercept.py.
"""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable

import httpx
import pytest

from benchmarks.processes import resident_bytes
from sidecar.intercept.interceptor import Interceptor
from tests.intercept.agents import client, proxy_port
from tests.intercept.conftest import Start, make_interceptor
from tests.intercept.stand_in import StandInGateway
from tests.intercept.wire import Wire
from tests.support.waiting import until

MIB = 2**20
ENDLESS = b"GET http://api.openai.com/endless HTTP/1.1\r\nHost: x\r\n\r\n"
MODELS = "GET http://api.openai.com/v1/models HTTP/1.1\r\nHost: x\r\n\r\n"

NONSENSE = [
    b"\x16\x03\x01\x02\x00" + b"\xff" * 600,
    b"\x16\x03\x01\x00\x05hello",
    b"\x80\x2e\x01\x00\x02",
    b"GET http://api.openai.com/ HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
    b"GET http://api.openai.com/ HTTP/9\r\n\r\n",
    b"GET\r\n\r\n",
    b"\r\n\r\n\r\n",
    b"POST http://api.openai.com/ HTTP/1.1\r\nHost: x\r\ncontent-length: x\r\n\r\n",
    b"POST http://api.openai.com/ HTTP/1.1\r\nHost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    b"POST http://api.openai.com/ HTTP/1.1\r\nHost: x\r\ncontent-length: 4\r\n"
    b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST http://api.openai.com/ HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"CONNECT api.openai.com HTTP/1.1\r\n\r\n",
    b"CONNECT :443 HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"A" * 70_000 + b" http://api.openai.com/ HTTP/1.1\r\n\r\n",
    bytes(range(256)) * 40,
]


async def still_answers(interceptor: Interceptor) -> None:
    """A new client is served, and nothing of the earlier ones is left."""
    await until(lambda: interceptor.connections == 0, "the end of every earlier connection")
    wire = await Wire.open(proxy_port(interceptor))
    assert (await wire.ask(MODELS)).status == 200
    wire.close()


@pytest.mark.parametrize("leave", [Wire.reset, Wire.half_close, Wire.close], ids=["reset", "half-closed", "closed"])
async def test_every_way_to_hang_up_ends_the_gateways_call_at_once(
    start: Start, gateway: StandInGateway, leave: Callable[[Wire], None]
) -> None:
    interceptor = await start()
    wire = await Wire.open(proxy_port(interceptor))
    await wire.send(ENDLESS)
    await wire.read_until(b": here\n\n")
    leave(wire)
    await asyncio.wait_for(gateway.disconnected.wait(), 1)
    wire.close()
    await still_answers(interceptor)


async def test_a_reader_that_takes_nothing_holds_the_gateway_back_and_not_bytes(
    start: Start, gateway: StandInGateway
) -> None:
    interceptor = await start()
    wire = await Wire.open(proxy_port(interceptor))
    await wire.send(b"GET http://api.openai.com/flood HTTP/1.1\r\nHost: x\r\n\r\n")
    await wire.read_until(b"xxxx")
    before = -1
    while before != gateway.flooded:  # until it stands still
        before = gateway.flooded
        await asyncio.sleep(0.3)
    assert gateway.flooded < 32 * MIB, "socket buffers, and no more"
    wire.reset()
    await asyncio.wait_for(gateway.disconnected.wait(), 5)
    await still_answers(interceptor)


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
async def test_a_body_of_64_mib_is_refused_within_bounded_memory(
    start: Start, gateway: StandInGateway, declared: bool
) -> None:
    interceptor = await start(body_limit=MIB)
    wire = await Wire.open(proxy_port(interceptor))
    length = f"content-length: {64 * MIB}" if declared else "transfer-encoding: chunked"
    before = resident_bytes()
    await wire.send(f"POST http://api.openai.com/x HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode())
    piece = b"a" * 2**16
    sent = 0
    try:
        while sent < 64 * MIB:
            await wire.send(piece if declared else b"10000\r\n" + piece + b"\r\n")
            sent += len(piece)
    except ConnectionError:
        pass
    got = await wire.until_closed_or(b" 413 ")
    assert b" 413 " in got or sent < 64 * MIB, "told, or cut off while it sends"
    assert resident_bytes() - before < 24 * MIB
    assert gateway.requests == []
    wire.close()
    await still_answers(interceptor)


@pytest.mark.parametrize("mode", ["regular", "reverse"])
async def test_nonsense_is_refused_or_cut_off_and_harms_nobody(
    start: Start, gateway: StandInGateway, mode: str
) -> None:
    interceptor = await start(specs=["regular@0", "reverse:https://api.openai.com@0"])
    port = dict(zip(("regular", "reverse"), (port for _, port in interceptor.addresses), strict=True))[mode]
    for nonsense in NONSENSE:
        wire = await Wire.open(port)
        await wire.send(nonsense)
        wire.half_close()
        assert b"200 OK" not in await wire.until_closed_or(b"200 OK"), nonsense[:100]
        wire.close()
    assert gateway.requests == []
    await still_answers(interceptor)


async def test_a_client_that_prefers_http2_is_served_over_http_1(start: Start, gateway: StandInGateway) -> None:
    interceptor = await start()
    context = ssl.create_default_context(cafile=str(interceptor.authority.certificate))
    proxy = f"http://127.0.0.1:{proxy_port(interceptor)}"
    async with httpx.AsyncClient(proxy=proxy, verify=context, http2=True, trust_env=False) as agent:
        answers = await asyncio.gather(*(agent.get("https://api.openai.com/v1/models") for _ in range(20)))
    assert {(answer.status_code, answer.http_version) for answer in answers} == {(200, "HTTP/1.1")}


GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
SIDES = [
    GET,
    b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\ncontent-length: 15\r\n\r\n{"stream":true}',
    b"GET /v1/models HTTP/1.1\r\nbad header\r\n\r\n",
]


async def test_requests_that_do_not_wait_for_answers_are_answered_in_order(
    start: Start, gateway: StandInGateway
) -> None:
    interceptor = await start()
    trust = interceptor.authority.certificate
    wire = await Wire.tunnel(proxy_port(interceptor), "api.openai.com:443", trust=trust)
    await wire.send(b"".join(GET.replace(b"models", b"models/%d" % number) for number in range(20)))
    for number in range(20):
        await wire.read_until(b'{"path":"/v1/models/%d"}' % number)
    wire.close()
    await still_answers(interceptor)


@pytest.mark.parametrize("seed", range(4))
async def test_agents_that_pipeline_break_off_and_talk_nonsense_in_any_order(
    start: Start, gateway: StandInGateway, seed: int
) -> None:
    """The guard of `conftest.py` sees what mitmproxy says to it."""
    dice = random.Random(seed)
    interceptor = await start()
    gateway.gate.set()

    async def agent() -> None:
        trust = interceptor.authority.certificate
        wire = await Wire.tunnel(proxy_port(interceptor), "api.openai.com:443", trust=trust)
        with contextlib.suppress(ConnectionError):  # cut off for its nonsense
            for _ in range(dice.randint(1, 3)):
                await wire.send(b"".join(dice.choices(SIDES, weights=(4, 2, 1), k=dice.randint(1, 4))))
                await asyncio.sleep(dice.choice([0, 0.001, 0.01, 0.05]))
        dice.choice([wire.close, wire.reset])()

    for _ in range(3):
        await asyncio.gather(*(agent() for _ in range(8)))
    await still_answers(interceptor)


class ClosingGateway:
    """Answers each request, says that it closes, and closes: no connection to it can be used twice."""

    def __init__(self) -> None:
        self.connections = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
        writer.close()


async def test_a_gateway_connection_that_was_closed_is_never_used_again(tmp_path: object) -> None:
    closing = ClosingGateway()
    async with await asyncio.start_server(closing.answer, "127.0.0.1", 0) as server:
        interceptor = make_interceptor(server.sockets[0].getsockname()[1], tmp_path)  # type: ignore[arg-type]
        await interceptor.start()
        try:
            async with client(interceptor) as agent:
                answers = [await agent.get("https://api.openai.com/x") for _ in range(100)]
        finally:
            await interceptor.stop()
    assert {answer.status_code for answer in answers} == {200}
    assert closing.connections == 100

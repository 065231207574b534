"""What an intercepted call leaves behind, with the garbage collector switched off: next to nothing."""

import asyncio
import gc
import ssl
from collections.abc import Iterator

import pytest
from mitmproxy import http
from mitmproxy.proxy.layer import Layer
from mitmproxy.proxy.server import ConnectionHandler

from tests.intercept.agents import proxy_port
from tests.intercept.conftest import Start
from tests.intercept.stand_in import StandInGateway
from tests.intercept.wire import Wire
from tests.support.waiting import until

KINDS = (Layer, ConnectionHandler, http.HTTPFlow, ssl.SSLObject)


@pytest.fixture
def by_reference_count_alone() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> int:
    return sum(isinstance(found, KINDS) for found in gc.get_objects())


async def test_requests_and_connections_are_freed_without_the_collector(
    start: Start, gateway: StandInGateway, by_reference_count_alone: None
) -> None:
    interceptor = await start()
    trust = interceptor.authority.certificate
    before = alive()
    wire = await Wire.tunnel(proxy_port(interceptor), "api.openai.com:443", trust=trust)
    counted = []
    for asked in (2, 8):
        for _ in range(asked):
            assert (await wire.ask("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
        counted.append(alive())
    assert counted[1] <= counted[0], "a request leaves nothing to the next one"
    for _ in range(3):
        refused = await Wire.open(proxy_port(interceptor))
        assert (await refused.ask("CONNECT evil:1 HTTP/1.1\r\nHost: x\r\n\r\n")).status == 403
        refused.close()
    wire.close()
    del wire, refused
    await until(lambda: interceptor.connections == 0, "the end of every connection")
    await asyncio.sleep(0)
    assert alive() <= before + 2


async def test_a_body_is_dropped_once_the_answer_is_there(start: Start, gateway: StandInGateway) -> None:
    interceptor = await start()
    wire = await Wire.open(proxy_port(interceptor))
    marked = "marked" * 1000
    head = f"POST http://api.openai.com/x HTTP/1.1\r\nHost: x\r\ncontent-length: {len(marked)}\r\n\r\n"
    assert (await wire.ask(head + marked)).status == 200
    flows = [found for found in gc.get_objects() if isinstance(found, http.HTTPFlow)]
    assert not [flow for flow in flows if (flow.request.raw_content or b"").startswith(b"marked")]
    assert gateway.bodies == [marked.encode()], "the gateway had it"
    wire.close()

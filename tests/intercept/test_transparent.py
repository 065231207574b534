"""The transparent listener; what the kernel says of a redirected connection is told by the test.

tests/pod does the same with real redirection, where root and iptables are at hand.
"""

import asyncio
import gc
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import platform

from sidecar.intercept import lookup
from sidecar.intercept.interceptor import Interceptor
from tests.intercept.agents import proxy_port
from tests.intercept.conftest import Original, Start
from tests.intercept.public_ca import PublicCA
from tests.intercept.stand_in import StandInGateway
from tests.intercept.wire import Wire
from tests.support.waiting import until

Dialled = Callable[[str, int], None]
MODELS = "GET /v1/models HTTP/1.1\r\nHost: api.openai.com\r\n\r\n"


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> Dialled:
    """Say where the agent's next connections were meant to go."""

    def tell(host: str, port: int) -> None:
        def original_addr(_: socket.socket) -> tuple[str, int]:
            return host, port

        monkeypatch.setattr(platform, "original_addr", original_addr)

    return tell


async def listening(start: Start, **changes: Any) -> Interceptor:
    return await start(specs=["transparent@0"], **changes)


async def tls(interceptor: Interceptor, name: str, trust: Path | None = None) -> Wire:
    wire = await Wire.open(proxy_port(interceptor))
    await wire.start_tls(trust or interceptor.authority.certificate, name)
    return wire


async def test_it_listens_on_the_loopback_address_of_each_family(start: Start) -> None:
    interceptor = await listening(start)
    hosts = [host for host, _ in interceptor.addresses_of("transparent")]
    assert hosts in (["127.0.0.1", "::1"], ["127.0.0.1"])
    assert interceptor.addresses_of("regular") == []


async def test_tls_for_an_llm_host_is_answered_by_the_gateway_whatever_its_address(
    start: Start, gateway: StandInGateway, dialled: Dialled
) -> None:
    dialled("203.0.113.7", 443)
    wire = await tls(await listening(start), "api.openai.com")
    assert (await wire.ask(MODELS)).status == 200
    assert gateway.requests[0].headers["x-tito-original-host"] == "api.openai.com"
    wire.close()


async def test_tls_for_another_host_is_refused_in_words(
    start: Start, gateway: StandInGateway, original: Original, dialled: Dialled
) -> None:
    dialled("127.0.0.1", original.port)
    wire = await tls(await listening(start), "example.com")
    reply = await wire.ask(MODELS)
    assert (reply.status, reply.error["code"]) == (403, "host_not_allowed")
    assert f"example.com:{original.port}" in reply.error["message"]
    assert (original.calls, gateway.requests) == (0, [])
    wire.close()


async def test_an_llm_hosts_name_on_another_port_is_refused(
    start: Start, gateway: StandInGateway, dialled: Dialled
) -> None:
    dialled("203.0.113.7", 8443)
    wire = await tls(await listening(start), "api.openai.com")
    assert ((await wire.ask(MODELS)).status, gateway.requests) == (403, [])
    wire.close()


async def test_a_host_header_decides_nothing_for_plain_http(
    start: Start, gateway: StandInGateway, original: Original, dialled: Dialled
) -> None:
    dialled("127.0.0.1", original.port)
    wire = await Wire.open(proxy_port(await listening(start, allowed=["10.0.0.9"])))
    for host in ("api.openai.com", "10.0.0.9"):
        reply = await wire.ask(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n")
        assert (reply.status, f"127.0.0.1:{original.port}" in reply.error["message"]) == (403, True)
    assert (original.calls, gateway.requests) == (0, [])
    wire.close()


async def test_plain_http_to_an_address_that_a_listed_name_has_is_for_that_name(
    start: Start, gateway: StandInGateway, dialled: Dialled
) -> None:
    dialled("127.0.0.1", 8000)
    wire = await Wire.open(proxy_port(await listening(start, hosts=["localhost:8000", "no.such.invalid:8000"])))
    assert (await wire.ask("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
    assert gateway.requests[0].headers["x-tito-original-host"] == "localhost:8000"
    wire.close()


async def test_an_allowed_host_is_reached_undecrypted_where_the_sidecar_finds_it(
    start: Start, tls_original: Original, public_ca: PublicCA, dialled: Dialled
) -> None:
    dialled("203.0.113.66", tls_original.port)  # the agent's own idea of where localhost is
    interceptor = await listening(start, allowed=[f"localhost:{tls_original.port}"])
    wire = await tls(interceptor, "localhost", public_ca.certificate)
    await wire.send(MODELS.encode())
    assert b"original" in await wire.until_closed()
    assert tls_original.calls == 1


async def test_an_allowed_address_is_passed_as_bytes_and_its_name_too(
    start: Start, original: Original, dialled: Dialled
) -> None:
    dialled("127.0.0.1", original.port)
    for entry in (f"127.0.0.1:{original.port}", f"localhost:{original.port}"):
        interceptor = await listening(start, allowed=[entry])
        wire = await Wire.open(proxy_port(interceptor))
        await wire.send(b"\x05\x01 not http")
        assert b"original" in await wire.until_closed()
        await interceptor.stop()


async def test_tls_without_a_name_is_judged_by_its_address(
    start: Start, gateway: StandInGateway, dialled: Dialled
) -> None:
    interceptor = await listening(start, hosts=["203.0.113.7"])
    for address, status in (("203.0.113.7", 200), ("203.0.113.8", 403)):
        dialled(address, 443)
        wire = await tls(interceptor, address)  # an address is no SNI
        assert (await wire.ask(MODELS)).status == status
        wire.close()
    assert len(gateway.requests) == 1


async def test_an_address_that_is_listed_counts_where_the_name_is_not(
    start: Start, gateway: StandInGateway, dialled: Dialled
) -> None:
    dialled("203.0.113.7", 8443)
    wire = await tls(await listening(start, hosts=["203.0.113.7:8443"]), "engine.corp")
    assert ((await wire.ask(MODELS)).status, len(gateway.requests)) == (200, 1)
    wire.close()


async def test_a_connection_that_nobody_redirected_reaches_nothing(start: Start, gateway: StandInGateway) -> None:
    """The kernel knows no original destination for it, or names the listener itself."""
    interceptor = await listening(start)
    wire = await Wire.open(proxy_port(interceptor))
    await wire.send(MODELS.encode())
    assert b"200 OK" not in await wire.until_closed_or(b"host_not_allowed")
    assert gateway.requests == []
    wire.close()


async def test_dns_over_tcp_is_not_carried(start: Start, original: Original, dialled: Dialled) -> None:
    dialled("127.0.0.1", 53)
    wire = await Wire.open(proxy_port(await listening(start)))
    await wire.send(
        b"\x00\x1d\xab\xcd\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01"
    )
    wire.half_close()
    assert await wire.until_closed() == b""


async def test_an_agent_that_leaves_while_its_address_is_looked_up_leaves_no_error(
    start: Start, dialled: Dialled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(_: str) -> frozenset[str]:
        time.sleep(0.6)
        return frozenset()

    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    monkeypatch.setattr(lookup, "_look_up", look_up)
    monkeypatch.setattr(lookup, "WAIT", 0.3)
    dialled("203.0.113.7", 80)
    interceptor = await listening(start)
    wire = await Wire.open(proxy_port(interceptor))
    await wire.send(MODELS.encode())
    await asyncio.sleep(0.1)  # the lookup has begun
    wire.reset()
    await until(lambda: interceptor.connections == 0, "the end of the connection")
    await asyncio.sleep(0.1)
    gc.collect()  # a task that nobody awaits tells of its error when it is gone
    assert failed == []

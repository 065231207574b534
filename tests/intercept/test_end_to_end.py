"""The interceptor with real sockets: agents on one side, a stand-in gateway on the other."""

import asyncio
import contextlib
import os
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sidecar.intercept.interceptor import Interceptor
from tests.intercept.conftest import SECRET, Original, Start
from tests.intercept.stand_in import StandInGateway
from tests.intercept.wire import Wire


def proxy_port(interceptor: Interceptor) -> int:
    return interceptor.addresses[0][1]


async def run_sdk(interceptor: Interceptor, *arguments: str) -> asyncio.subprocess.Process:
    """Start the SDK with nothing but environment variables that point it at the proxy."""
    environment = {
        "PATH": os.environ["PATH"],
        "OPENAI_API_KEY": "sk-agent",
        "HTTPS_PROXY": f"http://127.0.0.1:{proxy_port(interceptor)}",
        "SSL_CERT_FILE": str(interceptor.authority.bundle),
    }
    script = Path(__file__).with_name("sdk_agent.py")
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        *arguments,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def client(interceptor: Interceptor) -> httpx.AsyncClient:
    context = ssl.create_default_context(cafile=str(interceptor.authority.certificate))
    proxy = f"http://127.0.0.1:{proxy_port(interceptor)}"
    return httpx.AsyncClient(proxy=proxy, verify=context, trust_env=False, timeout=20)


async def test_the_sdk_with_only_proxy_variables_gets_its_answer_from_the_gateway(
    start: Start, gateway: StandInGateway
) -> None:
    agent = await run_sdk(await start())
    out, errors = await asyncio.wait_for(agent.communicate(), 60)
    assert out == b"whole\n", errors.decode()
    (request,) = gateway.requests
    assert request.url.path == "/v1/chat/completions"
    assert request.scope["scheme"] == "http"
    assert request.headers["x-tito-intercept-secret"] == SECRET
    assert request.headers["x-tito-original-host"] == "api.openai.com"
    assert request.headers["authorization"] == "Bearer sk-agent"


async def test_the_sdk_sees_the_first_event_before_the_gateway_makes_the_next(
    start: Start, gateway: StandInGateway
) -> None:
    agent = await run_sdk(await start(), "stream")
    assert agent.stdout is not None
    # The gate is shut, so this line can only come if nothing on the way waits for more.
    assert await asyncio.wait_for(agent.stdout.readline(), 60) == b"first\n"
    gateway.gate.set()
    out, errors = await asyncio.wait_for(agent.communicate(), 60)
    assert out == b"second\nlast\n", errors.decode()


async def test_leading_spaces_of_a_slow_json_answer_arrive_at_once(start: Start, gateway: StandInGateway) -> None:
    async with (
        client(await start()) as agent,
        agent.stream("GET", "https://api.openai.com/slow-json") as response,
    ):
        chunks = response.aiter_raw()
        assert await anext(chunks) == b" "
        gateway.gate.set()
        rest = b"".join([chunk async for chunk in chunks])
    assert rest == b' {"answer": 42}'


async def test_another_host_gets_403_on_connect(start: Start, gateway: StandInGateway) -> None:
    wire = await Wire.open(proxy_port(await start()))
    reply = await wire.ask("CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
    assert reply.status == 403
    assert reply.headers["content-type"] == "application/json"
    assert "example.com:443" in reply.error["message"]
    assert (reply.error["type"], reply.error["param"], reply.error["code"]) == (
        "forbidden",
        None,
        "host_not_allowed",
    )
    wire.close()


async def test_plain_http_to_another_host_is_refused_and_never_connected_to(
    start: Start, gateway: StandInGateway, original: Original
) -> None:
    wire = await Wire.open(proxy_port(await start()))
    url = f"http://127.0.0.1:{original.port}/"
    reply = await wire.ask(f"POST {url} HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-length: 2\r\n\r\nhi")
    assert (reply.status, reply.error["code"]) == (403, "host_not_allowed")
    reply = await wire.ask(f"GET {url} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert reply.status == 403, "the connection goes on after a refusal"
    assert (original.calls, gateway.requests) == (0, [])
    wire.close()


async def test_the_gateway_itself_cannot_be_named_as_a_destination(start: Start, gateway: StandInGateway) -> None:
    wire = await Wire.open(proxy_port(await start()))
    for request in (
        f"CONNECT 127.0.0.1:{gateway.port} HTTP/1.1\r\nHost: x\r\n\r\n",
        f"GET http://127.0.0.1:{gateway.port}/v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        assert (await wire.ask(request)).status == 403
    assert gateway.requests == []
    wire.close()


async def test_a_host_header_that_names_an_llm_host_does_not_open_another_destination(
    start: Start, gateway: StandInGateway, original: Original
) -> None:
    wire = await Wire.open(proxy_port(await start()))
    for target in (f"http://127.0.0.1:{original.port}/", "http://127.0.0.1:9/"):
        reply = await wire.ask(f"GET {target} HTTP/1.1\r\nHost: api.openai.com\r\n\r\n")
        assert (reply.status, reply.error["code"]) == (403, "host_not_allowed")
    reply = await wire.ask(f"CONNECT 127.0.0.1:{original.port} HTTP/1.1\r\nHost: api.openai.com:443\r\n\r\n")
    assert reply.status == 403
    assert (original.calls, gateway.requests) == (0, [])
    wire.close()


async def test_a_request_line_that_names_no_host_reaches_nothing_that_is_not_listed(
    start: Start, original: Original
) -> None:
    wire = await Wire.open(proxy_port(await start()))
    reply = await wire.ask(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{original.port}\r\n\r\n")
    assert (reply.status, original.calls) == (403, 0)
    wire.close()


async def test_inside_a_tunnel_the_tunnels_target_decides_whatever_the_request_says(
    start: Start, gateway: StandInGateway, original: Original
) -> None:
    interceptor = await start()
    trust = interceptor.authority.certificate
    wire = await Wire.tunnel(proxy_port(interceptor), "api.openai.com:443", trust=trust)
    for line in (f"GET http://127.0.0.1:{original.port}/a", "GET https://example.com/b", "GET /c"):
        reply = await wire.ask(f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{original.port}\r\n\r\n")
        assert reply.status == 200
    assert [request.url.path for request in gateway.requests] == ["/a", "/b", "/c"]
    assert {request.headers["x-tito-original-host"] for request in gateway.requests} == {"api.openai.com"}
    assert original.calls == 0
    wire.close()


async def test_the_original_host_is_never_dialled_even_where_it_is_listed(
    start: Start, gateway: StandInGateway, original: Original
) -> None:
    interceptor = await start(hosts=[f"127.0.0.1:{original.port}"])
    target = f"127.0.0.1:{original.port}"
    wire = await Wire.tunnel(proxy_port(interceptor), target, trust=interceptor.authority.certificate)
    assert (await wire.ask("GET /in-tls HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
    wire.close()
    wire = await Wire.tunnel(proxy_port(interceptor), target)
    assert (await wire.ask("GET /in-tunnel HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
    wire.close()
    wire = await Wire.open(proxy_port(interceptor))
    assert (await wire.ask(f"GET http://{target}/plain HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
    wire.close()
    assert [request.url.path for request in gateway.requests] == ["/in-tls", "/in-tunnel", "/plain"]
    assert {request.headers["x-tito-original-host"] for request in gateway.requests} == {target}
    assert original.calls == 0


async def test_bytes_that_are_not_http_are_not_carried_anywhere(start: Start, original: Original) -> None:
    interceptor = await start(hosts=[f"127.0.0.1:{original.port}"])
    wire = await Wire.tunnel(proxy_port(interceptor), f"127.0.0.1:{original.port}")
    await wire.send(b"\x00\x01\x02\x03SSH-2.0-agent\r\n\r\n")
    assert b"original" not in await wire.until_closed()
    assert original.calls == 0


async def test_an_error_in_our_routing_fails_closed(
    start: Start, gateway: StandInGateway, original: Original
) -> None:
    class Broken:
        names = ("api.openai.com",)

        def allows(self, host: str, port: int) -> bool:
            raise RuntimeError("a bug in the host list")

    wire = await Wire.open(proxy_port(await start(hosts=Broken())))
    await wire.send(f"GET http://127.0.0.1:{original.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert b" 502 " in await wire.until_closed()
    assert (original.calls, gateway.requests) == (0, [])


async def test_headers_of_our_own_family_that_an_agent_sends_are_dropped(
    start: Start, gateway: StandInGateway
) -> None:
    interceptor = await start()
    forged = {
        "X-Tito-Intercept-Secret": "guess",
        "x-tito-original-host": "evil",
        "X-TITO-Session": "other",
        "x-a": "b",
    }
    async with client(interceptor) as agent:
        await agent.get("https://api.anthropic.com/v1/models", headers=forged | {"x-a": "b"})
    (request,) = gateway.requests
    ours = {name: value for name, value in request.headers.items() if name.startswith("x-tito-")}
    assert ours == {"x-tito-intercept-secret": SECRET, "x-tito-original-host": "api.anthropic.com"}
    assert request.headers.getlist("x-tito-intercept-secret") == [SECRET]
    assert request.headers["x-a"] == "b"


async def test_a_websocket_handshake_is_refused(start: Start, gateway: StandInGateway) -> None:
    interceptor = await start()
    trust = interceptor.authority.certificate
    wire = await Wire.tunnel(proxy_port(interceptor), "api.openai.com:443", trust=trust)
    reply = await wire.ask(
        "GET /v1/realtime HTTP/1.1\r\nHost: api.openai.com\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    assert (reply.status, reply.error["code"]) == (400, "websocket_not_supported")
    assert gateway.requests == []
    wire.close()


async def test_an_h2c_offer_is_answered_in_http_1(start: Start, gateway: StandInGateway) -> None:
    wire = await Wire.open(proxy_port(await start()))
    reply = await wire.ask(
        "GET http://api.openai.com/v1/models HTTP/1.1\r\nHost: api.openai.com\r\n"
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    )
    assert reply.status == 200
    assert "upgrade" not in gateway.requests[0].headers
    wire.close()


async def test_a_body_over_the_limit_gets_413_and_one_at_the_limit_passes(
    start: Start, gateway: StandInGateway
) -> None:
    async with client(await start(body_limit=1000)) as agent:
        fits = await agent.post("https://api.openai.com/x", content=b"a" * 1000)
        too_long = await agent.post("https://api.openai.com/x", content=b"a" * 1001)
    assert [fits.status_code, too_long.status_code] == [200, 413]
    assert [len(body) for body in gateway.bodies] == [1000]


async def test_a_body_that_does_not_declare_its_length_is_cut_off_at_the_limit(
    start: Start, gateway: StandInGateway
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield b"a" * 100

    async with client(await start(body_limit=1000)) as agent:
        # The 413 is often lost: the connection is reset while the client is still sending.
        with contextlib.suppress(httpx.TransportError):
            response = await agent.post("https://api.openai.com/x", content=chunks())
            assert response.status_code == 413
    assert gateway.requests == []


async def test_an_answer_longer_than_the_limit_passes_when_it_is_chunked(
    start: Start, gateway: StandInGateway
) -> None:
    gateway.gate.set()
    async with client(await start(body_limit=10)) as agent:
        chunked = await agent.get("https://api.openai.com/slow-json")
        declared = await agent.get("https://api.openai.com/declares-its-length")
    assert chunked.json() == {"answer": 42}
    assert declared.status_code == 502, "a limit of mitmproxy's that the gateway has to know"


async def test_an_idle_keep_alive_connection_goes_on_over_the_same_gateway_connection(
    start: Start, gateway: StandInGateway
) -> None:
    async with client(await start()) as agent:
        assert (await agent.get("https://api.openai.com/one")).status_code == 200
        await asyncio.sleep(1.5)  # the idle time is what is tested
        assert (await agent.get("https://api.openai.com/two")).status_code == 200
    first, second = gateway.requests
    assert first.client == second.client, "both came over one connection"


async def test_a_client_that_leaves_is_noticed_by_a_gateway_that_says_nothing(
    start: Start, gateway: StandInGateway
) -> None:
    async with (
        client(await start()) as agent,
        agent.stream("GET", "https://api.openai.com/endless") as response,
    ):
        assert await anext(response.aiter_raw()) == b": here\n\n"
        assert not gateway.disconnected.is_set()
    await asyncio.wait_for(gateway.disconnected.wait(), 5)


async def test_an_agent_that_trusts_only_the_public_roots_refuses_our_certificate(start: Start) -> None:
    proxy = f"http://127.0.0.1:{proxy_port(await start())}"
    async with httpx.AsyncClient(proxy=proxy, verify=ssl.create_default_context(), trust_env=False) as agent:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await agent.get("https://api.openai.com/v1/models")

"""What an agent may reach through the proxy: LLM hosts by way of the gateway, and nothing else."""

from sidecar.intercept.hosts import Verdict
from tests.intercept.agents import proxy_port
from tests.intercept.conftest import Original, Start
from tests.intercept.stand_in import StandInGateway
from tests.intercept.wire import Wire


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
        def judge(self, host: str, port: int) -> Verdict:
            raise RuntimeError("a bug in the host list")

    wire = await Wire.open(proxy_port(await start(hosts=Broken())))
    await wire.send(f"GET http://127.0.0.1:{original.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert b" 502 " in await wire.until_closed()
    assert (original.calls, gateway.requests) == (0, [])


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

"""Hosts of ``--intercept-allow`` through the forward proxy: reached, and not read."""

import pytest

from tests.intercept.agents import proxy_port
from tests.intercept.conftest import Original, Start
from tests.intercept.public_ca import PublicCA
from tests.intercept.stand_in import StandInGateway
from tests.intercept.wire import Wire

ASK = b"GET / HTTP/1.1\r\nHost: api.openai.com\r\n\r\n"


async def test_tls_to_an_allowed_host_ends_at_that_host(
    start: Start, gateway: StandInGateway, tls_original: Original, public_ca: PublicCA
) -> None:
    target = f"localhost:{tls_original.port}"
    interceptor = await start(allowed=[target])
    wire = await Wire.tunnel(proxy_port(interceptor), target, trust=public_ca.certificate)
    await wire.send(ASK)
    assert b"original" in await wire.until_closed(), "its own certificate was seen, so nobody decrypted"
    assert (tls_original.calls, gateway.requests) == (1, [])


async def test_bytes_of_any_kind_pass_to_an_allowed_host(
    start: Start, gateway: StandInGateway, original: Original
) -> None:
    target = f"127.0.0.1:{original.port}"
    wire = await Wire.tunnel(proxy_port(await start(allowed=[target])), target)
    await wire.send(b"\x00\x01SSH-2.0-agent\r\n")
    assert b"original" in await wire.until_closed()
    assert gateway.requests == []


async def test_plain_http_to_an_allowed_host_is_answered_by_it(
    start: Start, gateway: StandInGateway, original: Original
) -> None:
    target = f"127.0.0.1:{original.port}"
    wire = await Wire.open(proxy_port(await start(allowed=[target])))
    reply = await wire.ask(f"GET http://{target}/ HTTP/1.1\r\nHost: api.openai.com\r\n\r\n")
    assert (reply.status, reply.body) == (200, b"original")
    assert gateway.requests == []
    wire.close()


@pytest.mark.parametrize("line", ["CONNECT localhost:{port}", "GET http://localhost:{port}/"])
async def test_another_port_of_an_allowed_host_is_refused(start: Start, original: Original, line: str) -> None:
    wire = await Wire.open(proxy_port(await start(allowed=["localhost"])))
    reply = await wire.ask(f"{line.format(port=original.port)} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (reply.status, reply.error["code"], original.calls) == (403, "host_not_allowed", 0)
    wire.close()


async def test_a_tunnel_to_an_llm_host_leads_to_the_gateway_whatever_the_handshake_names(
    start: Start, gateway: StandInGateway, tls_original: Original
) -> None:
    interceptor = await start(allowed=[f"localhost:{tls_original.port}"])
    wire = await Wire.tunnel(
        proxy_port(interceptor), "api.openai.com:443", trust=interceptor.authority.certificate, sni="localhost"
    )
    reply = await wire.ask("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (reply.status, tls_original.calls, len(gateway.requests)) == (200, 0, 1)
    wire.close()


async def test_other_providers_paths_and_keys_arrive_as_the_gateways(start: Start, gateway: StandInGateway) -> None:
    interceptor = await start()
    trust = interceptor.authority.certificate
    for host, path in (
        ("mine.openai.azure.com", "/openai/deployments/gpt-4o/models?api-version=1"),
        ("openrouter.ai", "/api/v1/models"),
        ("api.deepseek.com", "/models"),
        ("generativelanguage.googleapis.com", "/v1beta/openai/models"),
    ):
        wire = await Wire.tunnel(proxy_port(interceptor), f"{host}:443", trust=trust)
        assert (await wire.ask(f"GET {path} HTTP/1.1\r\nHost: {host}\r\napi-key: k\r\n\r\n")).status == 200
        wire.close()
    assert {request.url.path for request in gateway.requests} == {"/v1/models"}
    assert gateway.requests[0].url.query == "api-version=1"
    assert {request.headers["authorization"] for request in gateway.requests} == {"Bearer k"}

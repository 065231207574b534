"""Agents through the interceptor to the gateway: answers, streams, bodies, connections."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.intercept.agents import client, proxy_port, run_sdk
from tests.intercept.conftest import SECRET, Start
from tests.intercept.stand_in import StandInGateway


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

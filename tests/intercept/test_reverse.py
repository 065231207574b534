"""Reverse listeners, and several modes at once."""

import pytest

from tests.intercept.conftest import Original, Start
from tests.intercept.stand_in import StandInGateway
from tests.intercept.wire import Wire


@pytest.mark.parametrize("tls", [False, True])
async def test_a_reverse_listener_answers_for_its_server_alone_with_and_without_tls(
    start: Start, gateway: StandInGateway, original: Original, tls: bool
) -> None:
    interceptor = await start(specs=["reverse:https://llm.corp@0"])
    wire = await Wire.open(interceptor.addresses[0][1])
    if tls:
        await wire.start_tls(interceptor.authority.certificate, "localhost")
    for line in ("GET /api/v1/models", f"GET http://127.0.0.1:{original.port}/v1/models"):
        assert (await wire.ask(f"{line} HTTP/1.1\r\nHost: 127.0.0.1:{original.port}\r\n\r\n")).status == 200
    wire.close()
    assert [request.url.path for request in gateway.requests] == ["/v1/models"] * 2
    assert {request.headers["x-tito-original-host"] for request in gateway.requests} == {"llm.corp"}
    assert original.calls == 0


async def test_a_reverse_listener_is_no_proxy(start: Start, original: Original) -> None:
    interceptor = await start(specs=["reverse:http://llm.corp:8000@0"])
    wire = await Wire.open(interceptor.addresses[0][1])
    await wire.send(f"CONNECT 127.0.0.1:{original.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert b" 400 " in await wire.until_closed()
    assert original.calls == 0


async def test_all_modes_run_at_once(start: Start, gateway: StandInGateway) -> None:
    interceptor = await start(specs=["regular@0", "reverse:https://openrouter.ai@0", "transparent@0"])
    [(_, regular)], [(_, reverse)] = interceptor.addresses_of("regular"), interceptor.addresses_of("reverse")
    assert interceptor.addresses_of("transparent")
    for port, line in ((regular, "GET http://api.openai.com/v1/models"), (reverse, "GET /api/v1/models")):
        wire = await Wire.open(port)
        assert (await wire.ask(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
        wire.close()
    asked = [request.headers["x-tito-original-host"] for request in gateway.requests]
    assert asked == ["api.openai.com", "openrouter.ai"]

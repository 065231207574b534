"""Starting, judging and stopping the interceptor inside a loop that belongs to others."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.addons.tlsconfig import TlsConfig

from sidecar.intercept import embedded
from sidecar.intercept.certificate import AuthorityError
from sidecar.intercept.interceptor import Interceptor, InterceptorError
from sidecar.intercept.listener import Listener
from tests.intercept.conftest import Start, make_interceptor
from tests.intercept.stand_in import StandInGateway
from tests.intercept.wire import Wire


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_start_returns_the_bound_addresses_of_every_listener(start: Start) -> None:
    interceptor = await start(specs=["regular@0", "regular@localhost:0"])
    first, second = interceptor.addresses[:2]
    assert first[0] == "127.0.0.1"
    assert listens(first[1])
    assert listens(second[1])
    assert (interceptor.ok, interceptor.reason) == (True, None)


async def test_the_loops_task_factory_and_exception_handler_are_never_touched(
    start: Start, gateway: StandInGateway
) -> None:
    loop = asyncio.get_running_loop()

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **rest: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coroutine, loop=loop, **rest)

    def handler(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        raise AssertionError(context)

    loop.set_task_factory(factory)
    loop.set_exception_handler(handler)
    try:
        interceptor = await start()
        assert (loop.get_task_factory(), loop.get_exception_handler()) == (factory, handler)
        port = interceptor.addresses[0][1]
        wire = await Wire.open(port)
        assert (await wire.ask("GET http://api.openai.com/ HTTP/1.1\r\nHost: x\r\n\r\n")).status == 200
        assert (loop.get_task_factory(), loop.get_exception_handler()) == (factory, handler)
        await interceptor.stop()
        assert (loop.get_task_factory(), loop.get_exception_handler()) == (factory, handler)
    finally:
        loop.set_task_factory(None)
        loop.set_exception_handler(None)


async def test_a_taken_port_is_an_error_that_names_it_and_leaves_nothing_behind(
    gateway: StandInGateway, tmp_path: Path, taken_port: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        free = reserved.getsockname()[1]
    handlers = list(logging.getLogger().handlers)
    interceptor = make_interceptor(
        gateway.port, tmp_path, specs=[f"regular@{free}", f"regular@127.0.0.1:{taken_port}"]
    )
    with pytest.raises(InterceptorError, match=rf"regular@127\.0\.0\.1:{taken_port}.*in use.*free the address"):
        await interceptor.start()
    assert not listens(free), "the listener that could be opened is closed again"
    assert not interceptor.ok
    assert logging.getLogger().handlers == handlers


async def test_an_interceptor_that_failed_starts_once_the_port_is_free(
    gateway: StandInGateway, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        interceptor = make_interceptor(gateway.port, tmp_path, specs=[f"regular@{port}"])
        with pytest.raises(InterceptorError):
            await interceptor.start()
    assert await interceptor.start() == [("127.0.0.1", port)]
    await interceptor.stop()


async def test_a_key_that_others_can_read_stops_the_start(gateway: StandInGateway, tmp_path: Path) -> None:
    interceptor = make_interceptor(gateway.port, tmp_path)
    await interceptor.start()
    await interceptor.stop()
    (tmp_path / "ca-key.pem").chmod(0o644)
    with pytest.raises(AuthorityError, match=r"ca-key\.pem has mode 0644"):
        await interceptor.start()
    assert (interceptor.ok, interceptor.addresses) == (False, [])


async def test_a_ca_that_mitmproxy_cannot_load_stops_the_start(
    gateway: StandInGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: TlsConfig, updated: object) -> None:
        raise OSError("no dhparam file")  # mitmproxy logs what an addon raises, and goes on

    monkeypatch.setattr(TlsConfig, "configure", broken)
    interceptor = make_interceptor(gateway.port, tmp_path)
    with pytest.raises(InterceptorError, match="could not load the CA"):
        await interceptor.start()
    assert not interceptor.ok


async def test_an_unexpected_error_at_start_leaves_nothing_behind(
    gateway: StandInGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Listener.setup_servers
    ports: list[int] = []

    async def interrupted(self: Listener) -> bool:
        await setup(self)
        ports.extend(address[1] for address in self.listen_addrs())
        raise asyncio.CancelledError

    monkeypatch.setattr(Listener, "setup_servers", interrupted)
    interceptor = make_interceptor(gateway.port, tmp_path)
    with pytest.raises(asyncio.CancelledError):
        await interceptor.start()
    assert ports
    assert not listens(ports[0])


async def test_a_listener_that_is_lost_makes_the_interceptor_not_ok_with_a_reason(start: Start) -> None:
    interceptor = await start(specs=["regular@0", "regular@localhost:0"])
    assert interceptor._embedded is not None
    lost = next(iter(interceptor._embedded.listener.servers))
    await lost.stop()
    assert not interceptor.ok
    assert interceptor.reason == "--intercept regular@127.0.0.1:0: the listener was closed; restart the sidecar"


async def test_stop_closes_the_port_and_cuts_both_sides_of_what_is_open(
    start: Start, gateway: StandInGateway
) -> None:
    interceptor = await start()
    port = interceptor.addresses[0][1]
    streaming, idle = await Wire.open(port), await Wire.open(port)
    await streaming.send(b"GET http://api.openai.com/endless HTTP/1.1\r\nHost: x\r\n\r\n")
    await streaming.read_until(b": here\n\n")
    assert interceptor.connections == 2
    await asyncio.wait_for(interceptor.stop(), 10)
    await streaming.until_closed()
    assert await idle.until_closed() == b""
    await asyncio.wait_for(gateway.disconnected.wait(), 5)
    assert not listens(port)
    assert (interceptor.ok, interceptor.addresses, interceptor.connections) == (False, [], 0)
    assert interceptor.reason == "the interceptor is not started"
    await interceptor.stop()


async def test_a_connection_that_does_not_end_is_reported_and_does_not_hold_the_stop(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(embedded, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(Listener, "cut", lambda self: None)
    interceptor = await start()
    wire = await Wire.open(interceptor.addresses[0][1])
    assert (await wire.ask("CONNECT evil:1 HTTP/1.1\r\nHost: x\r\n\r\n")).status == 403
    await interceptor.stop()
    assert "1 connections did not end in 0.05 s" in caplog.text
    wire.close()


async def test_a_connection_in_its_first_hook_has_no_task_to_cut_yet() -> None:
    class Handler:
        client = object()

        def __init__(self) -> None:
            self.transports: dict[object, object] = {}

    listener = Listener()
    with listener.register_connection("id", Handler()):  # type: ignore[arg-type]
        assert not listener.idle.is_set()
        listener.cut()
    assert listener.idle.is_set()


async def test_it_starts_again_with_the_same_ca_and_only_once_at_a_time(start: Start) -> None:
    interceptor = await start()
    certificate = interceptor.authority.certificate.read_bytes()
    with pytest.raises(RuntimeError, match="started already"):
        await interceptor.start()
    await interceptor.stop()
    assert await interceptor.start()
    assert interceptor.authority.certificate.read_bytes() == certificate


async def test_mitmproxy_adds_no_handler_to_the_root_logger_and_is_quiet(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = logging.getLogger("mitmproxy")
    monkeypatch.setattr(theirs, "level", logging.NOTSET)
    before = list(logging.getLogger().handlers)
    interceptor = await start()
    assert logging.getLogger().handlers == before
    assert theirs.level == logging.WARNING
    await interceptor.stop()
    theirs.setLevel(logging.INFO)
    await interceptor.start()
    assert theirs.level == logging.INFO, "a level that somebody chose stays"


async def test_the_options_are_the_ones_the_sidecar_needs(start: Start) -> None:
    interceptor = await start(body_limit=12345)
    assert interceptor._embedded is not None
    options = interceptor._embedded.master.options
    assert (options.connection_strategy, options.http2, options.rawtcp, options.websocket) == (
        "lazy",
        False,
        False,
        False,
    )
    assert (options.tcp_timeout, options.body_size_limit) == (604800, "12345")
    assert (options.validate_inbound_headers, options.store_streamed_bodies) == (True, False)
    assert options.listen_host == "127.0.0.1"
    assert interceptor._embedded.master.addons.get("errorcheck") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"specs": []}, "at least one --intercept"),
        ({"secret": ""}, "secret must be"),
        ({"secret": " s"}, "secret must be"),
        ({"secret": "s\r\nx: y"}, "secret must be"),
        ({"secret": "ü"}, "secret must be"),
        ({"body_limit": 0}, "body_limit is 0"),
    ],
)
def test_arguments_that_cannot_work_are_refused_when_it_is_made(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_interceptor(1, tmp_path, **changes)


def test_there_is_no_ca_before_the_first_start(tmp_path: Path) -> None:
    interceptor: Interceptor = make_interceptor(1, tmp_path)
    with pytest.raises(RuntimeError, match="before its first start"):
        _ = interceptor.authority

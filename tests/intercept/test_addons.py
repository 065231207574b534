"""The addons by themselves, with mitmproxy's own test flows."""

import json
from collections.abc import Iterator

import pytest
from mitmproxy import http
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.test import taddons, tflow

from sidecar.intercept.destination import Judge
from sidecar.intercept.guard import Guard
from sidecar.intercept.hosts import parse_rules
from sidecar.intercept.route import Route
from sidecar.intercept.stream import Stream
from sidecar.intercept.upgrade import Upgrade, upgrade_tokens

GATEWAY = ("127.0.0.1", 8800)
RULES = parse_rules(["api.openai.com", "llm.internal:8000"], ["pypi.org"])


@pytest.fixture
def route() -> Iterator[Route]:
    addon = Route(Judge(RULES), GATEWAY, "s3cret")
    with taddons.context(addon):
        yield addon


def flow_to(url: str, method: str = "POST", **headers: str) -> http.HTTPFlow:
    flow = tflow.tflow(req=http.Request.make(method, url))
    flow.request.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return flow


def error_of(flow: http.HTTPFlow) -> dict[str, object]:
    assert flow.response is not None
    assert flow.response.headers["content-type"] == "application/json"
    assert flow.response.headers["content-length"] == str(len(flow.response.raw_content or b""))
    error = json.loads(flow.response.raw_content or b"")["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


async def test_a_call_for_an_llm_host_is_pointed_at_the_gateway_over_plain_http(route: Route) -> None:
    flow = flow_to("https://api.openai.com/v1/chat/completions?a=b", x_tito_session="forged")
    await route.requestheaders(flow)
    request = flow.request
    assert flow.response is None
    assert (request.scheme, request.host, request.port, request.path) == (
        "http",
        *GATEWAY,
        "/v1/chat/completions?a=b",
    )
    assert request.headers["x-tito-intercept-secret"] == "s3cret"
    assert request.headers["x-tito-original-host"] == "api.openai.com"
    assert "x-tito-session" not in request.headers


async def test_a_host_on_its_own_port_is_told_with_the_port(route: Route) -> None:
    flow = flow_to("http://llm.internal:8000/v1/models", "GET")
    await route.requestheaders(flow)
    assert flow.request.headers["x-tito-original-host"] == "llm.internal:8000"


@pytest.mark.parametrize("hook", ["http_connect", "requestheaders"])
async def test_any_other_destination_is_refused_in_openais_envelope(route: Route, hook: str) -> None:
    flow = flow_to("http://127.0.0.1:9/", "GET", Host="api.openai.com")
    waiting = getattr(route, hook)(flow)
    if waiting is not None:
        await waiting
    error = error_of(flow)
    assert flow.response is not None
    assert flow.response.status_code == 403
    assert (error["type"], error["param"], error["code"]) == ("forbidden", None, "host_not_allowed")
    assert "127.0.0.1:9" in str(error["message"])
    assert "api.openai.com, llm.internal:8000, pypi.org;" in str(error["message"])
    assert (flow.request.host, flow.request.port) == ("127.0.0.1", 9), "it is not routed anywhere"
    assert "x-tito-intercept-secret" not in flow.request.headers


def test_a_connect_to_an_llm_host_is_let_through_untouched(route: Route) -> None:
    flow = flow_to("https://api.openai.com/", "CONNECT")
    route.http_connect(flow)
    assert (flow.response, flow.request.host) == (None, "api.openai.com")


async def test_the_secret_is_not_in_what_a_refused_client_reads(route: Route) -> None:
    flow = flow_to("http://evil/")
    await route.requestheaders(flow)
    assert flow.response is not None
    assert b"s3cret" not in (flow.response.raw_content or b"")


def test_a_response_from_the_gateway_is_streamed_and_a_refusal_is_not() -> None:
    flow = tflow.tflow(resp=http.Response.make(200))
    assert flow.response is not None
    flow.response.raw_content = None  # as it is when the head has come and the body has not
    Stream().responseheaders(flow)
    assert flow.response.stream is True
    flow.response = http.Response.make(403, b"refused")
    Stream().responseheaders(flow)
    assert flow.response.stream is False
    flow.response = None
    Stream().responseheaders(flow)


@pytest.mark.parametrize("offer", ["websocket", "WebSocket", "h2c, websocket/13"])
def test_a_websocket_offer_is_refused(offer: str) -> None:
    flow = flow_to("http://api.openai.com/", Upgrade=offer, Connection="Upgrade")
    Upgrade().requestheaders(flow)
    assert flow.response is not None
    assert (flow.response.status_code, error_of(flow)["code"]) == (400, "websocket_not_supported")


@pytest.mark.parametrize(
    ("connection", "left"),
    [("Upgrade, HTTP2-Settings", None), ("keep-alive, upgrade", "keep-alive"), (None, None)],
)
def test_another_upgrade_offer_is_taken_out_of_the_request(connection: str | None, left: str | None) -> None:
    flow = flow_to("http://api.openai.com/", Upgrade="h2c", HTTP2_Settings="AA")
    if connection is not None:
        flow.request.headers["connection"] = connection
    Upgrade().requestheaders(flow)
    assert flow.response is None
    assert "upgrade" not in flow.request.headers
    assert "http2-settings" not in flow.request.headers
    assert flow.request.headers.get("connection") == left


def test_http2_without_tls_is_refused() -> None:
    flow = flow_to("http://api.openai.com/")
    flow.request.http_version = "HTTP/2.0"
    Upgrade().requestheaders(flow)
    assert error_of(flow)["code"] == "http2_not_supported"


def test_a_request_without_an_offer_or_with_an_answer_is_left_alone() -> None:
    flow = flow_to("http://api.openai.com/", Connection="keep-alive")
    Upgrade().requestheaders(flow)
    assert (flow.response, flow.request.headers["connection"]) == (None, "keep-alive")
    answered = flow_to("http://evil/", Upgrade="websocket")
    answered.response = http.Response.make(403)
    Upgrade().requestheaders(answered)
    assert answered.response.status_code == 403


def test_upgrade_tokens_are_read_from_every_header_without_versions() -> None:
    headers = http.Headers([(b"upgrade", b"h2c,, Foo/2"), (b"Upgrade", b"websocket")])
    assert upgrade_tokens(headers) == {"h2c", "foo", "websocket"}
    assert upgrade_tokens(http.Headers()) == set()


@pytest.mark.parametrize(
    ("address", "transport", "allowed"),
    [
        (GATEWAY, "tcp", True),
        (("127.0.0.1", 8801), "tcp", False),
        (("localhost", 8800), "tcp", False),
        (("api.openai.com", 443), "tcp", False),
        (("pypi.org", 443), "tcp", True),
        (("pypi.org", 22), "tcp", False),
        (("pypi.org", 443), "udp", False),
        (GATEWAY, "udp", False),
        (None, "tcp", False),
    ],
)
def test_the_guard_lets_nothing_but_the_gateway_and_allowed_hosts_be_connected_to(
    address: tuple[str, int] | None, transport: str, allowed: bool
) -> None:
    server = tflow.tserver_conn()
    server.address, server.transport_protocol, server.error = address, transport, None
    Guard(GATEWAY, RULES).server_connect(ServerConnectionHookData(server=server, client=tflow.tclient_conn()))
    assert (server.error is None) == allowed

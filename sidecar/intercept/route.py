"""Addon: sends calls for LLM hosts to the gateway and refuses what is on no list.

Promise: a request for an LLM host leaves here for the gateway, over plain HTTP, with the per-boot secret, the
gateway's path and no ``x-tito-`` header that the agent wrote. ``sidecar.intercept.destination`` says what a
destination is; no header is part of it. Only where a ``regular`` listener gets a request line without a host
does mitmproxy take the destination from the ``Host`` header, and what that can reach is the same lists. Inside a
CONNECT tunnel mitmproxy sets ``request.host`` to the tunnel's target, whatever the request line says.
Concurrency: stateless; hooks run on the event loop; only the flow they are about waits for them.
"""

import logging

from mitmproxy import http
from mitmproxy.proxy.mode_specs import ReverseMode

from sidecar.intercept.destination import Judge
from sidecar.intercept.headers import ORIGINAL_HOST_HEADER, SECRET_HEADER, original_host, without_reserved
from sidecar.intercept.hosts import Verdict
from sidecar.intercept.paths import gateway_path
from sidecar.intercept.refusal import host_not_allowed
from sidecar.intercept.spec import format_address

logger = logging.getLogger(__name__)


class Route:
    """Routes flows to ``gateway`` (host, port), proving itself with ``secret``.

    With a ``session_key`` every call is of that session, whatever key or session the agent names."""

    def __init__(self, judge: Judge, gateway: tuple[str, int], secret: str, session_key: str | None = None) -> None:
        self._judge = judge
        self._gateway = gateway
        self._secret = secret
        self._session_key = session_key

    def http_connect(self, flow: http.HTTPFlow) -> None:
        """Refuse a CONNECT to a host that is on no list."""
        host, port = flow.request.host, flow.request.port
        if self._judge.rules.judge(host, port) is Verdict.REFUSE:
            self._refuse(flow, host, port)

    async def requestheaders(self, flow: http.HTTPFlow) -> None:
        """Refuse a request, point it at the gateway, or leave it as it is (plain HTTP to an allowed host)."""
        request = flow.request
        found = await self._judge.request(flow.client_conn, (request.host, request.port))
        if found.verdict is Verdict.REFUSE:
            self._refuse(flow, found.host, found.port)
        elif found.verdict is Verdict.GATEWAY:
            self._to_gateway(request, original_host(_scheme(flow), found.host, found.port))

    def _to_gateway(self, request: http.Request, asked_for: str) -> None:
        request.headers.fields = without_reserved(request.headers.fields)
        request.headers[SECRET_HEADER] = self._secret
        request.headers[ORIGINAL_HOST_HEADER] = asked_for
        if "api-key" in request.headers and "authorization" not in request.headers:  # Azure's header
            request.headers["authorization"] = f"Bearer {request.headers.pop('api-key')}"
        if self._session_key is not None:
            for name in ("x-api-key", "x-session-id", "x-smg-routing-key"):
                request.headers.pop(name, None)
            request.headers["authorization"] = f"Bearer {self._session_key}"
        request.path = gateway_path(request.path)
        request.scheme = "http"
        request.host, request.port = self._gateway

    def _refuse(self, flow: http.HTTPFlow, host: str, port: int) -> None:
        logger.info("refused %s %s", flow.request.method, format_address(host, port))
        flow.response = host_not_allowed(host, port, self._judge.rules)


def _scheme(flow: http.HTTPFlow) -> str:
    """The scheme that the agent meant: a reverse listener's own says nothing of it."""
    if isinstance(flow.client_conn.proxy_mode, ReverseMode):
        return "https" if flow.request.port == 443 else "http"
    return flow.request.scheme

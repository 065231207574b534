"""Addon: sends calls for LLM hosts to the gateway and refuses every other destination.

Promise: a request that leaves here without a response of ours goes to the gateway, over plain HTTP, with
the per-boot secret and no ``x-tito-`` header that the agent wrote. The decision rests on the destination
alone: the CONNECT target, or for plain HTTP the host of the request line. The ``Host`` header decides
nothing; only where the request line names no host at all does mitmproxy take the destination from it, and
what that can reach is the same list. Inside a CONNECT tunnel mitmproxy sets ``request.host`` to the
tunnel's target, whatever the request line says.
Concurrency: stateless; hooks run on the event loop and never wait.
"""

import logging

from mitmproxy import http

from sidecar.intercept.headers import ORIGINAL_HOST_HEADER, SECRET_HEADER, original_host, without_reserved
from sidecar.intercept.hosts import LlmHosts
from sidecar.intercept.refusal import host_not_allowed
from sidecar.intercept.spec import format_address

logger = logging.getLogger(__name__)


class Route:
    """Routes flows to ``gateway`` (host, port), proving itself with ``secret``."""

    def __init__(self, hosts: LlmHosts, gateway: tuple[str, int], secret: str) -> None:
        self._hosts = hosts
        self._gateway = gateway
        self._secret = secret

    def http_connect(self, flow: http.HTTPFlow) -> None:
        """Refuse a CONNECT to anything but an LLM host."""
        self._refuse_unless_allowed(flow)

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        """Refuse a request, or point it at the gateway."""
        if self._refuse_unless_allowed(flow):
            return
        request = flow.request
        asked_for = original_host(request.scheme, request.host, request.port)
        request.headers.fields = without_reserved(request.headers.fields)
        request.headers[SECRET_HEADER] = self._secret
        request.headers[ORIGINAL_HOST_HEADER] = asked_for
        request.scheme = "http"
        request.host, request.port = self._gateway

    def _refuse_unless_allowed(self, flow: http.HTTPFlow) -> bool:
        host, port = flow.request.host, flow.request.port
        if self._hosts.allows(host, port):
            return False
        logger.info("refused %s %s", flow.request.method, format_address(host, port))
        flow.response = host_not_allowed(host, port, self._hosts)
        return True

"""Addon: keeps every connection on HTTP/1.1 messages.

Promise: no WebSocket handshake, no other ``Upgrade`` and no cleartext HTTP/2 reaches the gateway. A
WebSocket or a request in HTTP/2 framing is refused in words; other upgrades (``h2c``) are optional for the
client, so the offer is removed and the request goes on.
Concurrency: stateless; hooks run on the event loop and never wait.
"""

from mitmproxy import http

from sidecar.intercept.refusal import http2_not_supported, websocket_not_supported


def upgrade_tokens(headers: http.Headers) -> set[str]:
    """Return the protocols that all ``Upgrade`` headers offer, lower case, no versions (RFC 9110, 7.8)."""
    offers = ",".join(headers.get_all("upgrade")).split(",")
    return {offer.strip().partition("/")[0].lower() for offer in offers} - {""}


class Upgrade:
    """Refuses or removes protocol upgrades."""

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        """Judge a request that no earlier addon has answered."""
        request = flow.request
        if flow.response is not None:
            return
        if request.is_http2:
            flow.response = http2_not_supported()
        elif "websocket" in upgrade_tokens(request.headers):
            flow.response = websocket_not_supported()
        elif "upgrade" in request.headers:
            for name in ("upgrade", "http2-settings"):
                request.headers.pop(name, None)
            kept = [
                option.strip()
                for option in request.headers.get("connection", "").split(",")
                if option.strip().lower() not in ("", "upgrade", "http2-settings")
            ]
            request.headers.pop("connection", None)
            if kept:
                request.headers["connection"] = ", ".join(kept)

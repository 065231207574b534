"""Addon: passes every gateway response on as it arrives.

Promise: no response is held back until it is complete: an SSE event, or the first byte of a long JSON
answer, reaches the agent when the gateway sends it, and no answer is stored here.
Concurrency: stateless; hooks run on the event loop and never wait.
"""

from mitmproxy import http


class Stream:
    """Turns streaming on for responses that come from the gateway."""

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        """Stream a response whose body is still to come; refusals of ours already have theirs."""
        if flow.response is not None and flow.response.raw_content is None:
            flow.response.stream = True

"""The interceptor: a forward proxy for agents whose base URL nobody can change.

An agent that only honours proxy variables (``HTTPS_PROXY``) and a certificate bundle reaches the gateway
through this package: mitmproxy ends its TLS, our addons send calls for known LLM hosts to the gateway on
loopback and refuse every other destination. This module imports nothing, so that a sidecar without
``--intercept`` does not pay for importing mitmproxy (0.5 s); ``sidecar.intercept.headers``, ``spec`` and
``hosts`` are as light.
"""

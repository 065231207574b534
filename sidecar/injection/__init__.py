"""`tito-sidecar inject-webhook`: adds the sidecar to pods that ask for it.

`inject` (inject.py) is a pure function from pod and settings to a JSON patch; `server.py` serves it over TLS. Data
flows one way: review -> inject -> choices, threats, container, agents -> restore -> patch.
"""

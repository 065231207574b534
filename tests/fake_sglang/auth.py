"""Who may call what: the API key and the admin key.

Promise: SGLang 0.5.23's rules (utils/auth.py): Bearer only; probes and metrics are open; once there is an admin
key the admin paths take only that, and all others only the API key. Concurrency: pure functions.
"""

import secrets

ADMIN_PATHS = frozenset(
    {
        "/abort_request",
        "/pause_generation",
        "/continue_generation",
        "/update_weight_version",
        "/update_weights_from_disk",
        "/flush_cache",
    }
)


def authorised(path: str, header: str | None, api_key: str | None, admin_key: str | None) -> bool:
    """Bearer keys: admin paths take only the admin key once there is one, all others only the API key."""
    if path.startswith(("/health", "/ready", "/metrics")):
        return True
    expected = admin_key if path in ADMIN_PATHS and admin_key else api_key
    if expected is None:
        return True
    scheme, _, key = (header or "").partition(" ")
    return scheme.lower() == "bearer" and secrets.compare_digest(key.encode(), expected.encode())

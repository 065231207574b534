"""As much of an API server as helm's `lookup` asks: discovery, and the Secrets that it is given. Loopback only."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_KINDS = {
    "v1": ("Secret", "ConfigMap", "Service", "ServiceAccount", "Pod"),
    "apps/v1": ("Deployment", "StatefulSet"),
    "policy/v1": ("PodDisruptionBudget",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "admissionregistration.k8s.io/v1": ("MutatingWebhookConfiguration",),
}


def _discovery() -> dict[str, Any]:
    groups = [version.split("/")[0] for version in _KINDS if "/" in version]
    found: dict[str, Any] = {
        "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in groups]},
    }
    for version, kinds in _KINDS.items():
        resources = [_resource(kind) for kind in kinds]
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        found[path] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    return found


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resource(kind: str) -> dict[str, Any]:
    plural = f"{kind.lower().removesuffix('y')}ies" if kind.endswith("y") else f"{kind.lower()}s"
    namespaced = not kind.endswith("Configuration")
    return {"name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]}


@contextmanager
def fake_api(secrets: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and the paths that it was asked, for a cluster with these Secrets."""
    paths = {f"/api/v1/namespaces/{s['metadata']['namespace']}/secrets/{s['metadata']['name']}": s for s in secrets}
    asked: list[str] = []
    discovery = _discovery()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            found = discovery.get(path) or paths.get(path)
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(found or missing).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

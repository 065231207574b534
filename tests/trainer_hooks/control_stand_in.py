"""A stand-in for the control plane behind httpx.MockTransport: its paths, token, states and error envelope."""

from __future__ import annotations

import json
from typing import Any

import httpx

TOKEN = "control-token"


def error(status: int, message: str, code: str) -> httpx.Response:
    envelope = {"message": message, "type": "invalid_request_error", "code": code, "param": "session_id"}
    return httpx.Response(status, json={"error": envelope})


class ControlStandIn:
    """Handles requests one at a time; `seen` holds them, `refuse_connects` fails so many before they arrive."""

    def __init__(self) -> None:
        self.seen: list[httpx.Request] = []
        self.sessions: dict[str, dict[str, Any]] = {}
        self.pauses: list[str] = []
        self.is_ready = True
        self.refuse_connects = 0
        self.refusal: type[httpx.TransportError] = httpx.ConnectError
        self.fail_with: Exception | None = None
        self.losses: list[Exception] = []
        """Raised one after the other, each after the call has arrived."""
        self.connects = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.connects += 1
        if self.refuse_connects:
            self.refuse_connects -= 1
            raise self.refusal("connection refused", request=request)
        self.seen.append(request)
        if self.fail_with is not None:
            raise self.fail_with
        if self.losses:
            raise self.losses.pop(0)
        body = json.loads(request.content) if request.content else {}
        path = request.url.raw_path.decode().partition("?")[0]
        if path == "/health":
            return httpx.Response(200, json={"status": "ok"})
        if path == "/ready":
            return httpx.Response(200 if self.is_ready else 503, json={"ready": self.is_ready})
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return error(401, "the control token is wrong", "invalid_token")
        return self._handle(f"{request.method} {path}", body)

    def _handle(self, call: str, body: dict[str, Any]) -> httpx.Response:
        session_id = body.get("session_id")
        match call:
            case "POST /session/open":
                session_id = session_id or f"new-{len(self.sessions)}"
                self.sessions[session_id] = {"state": "open", "sampling": body.get("sampling")}
                return httpx.Response(200, json={"session_id": session_id, "base_url": "http://h/v1"})
            case "POST /session/finalize" if session_id in self.sessions:
                self.sessions[session_id] |= {"state": "finalized", "reward": body.get("reward")}
                return httpx.Response(200, json={"success": True, "session_id": session_id, "num_segments": 1})
            case "POST /session/discard":
                removed = self.sessions.pop(session_id, None) is not None
                return httpx.Response(200, json={"success": True, "session_removed": removed})
            case "POST /trajectory/read":
                assert body["arrays"] in ("json", "binary")
                data = [{"session_id": session_id, "tokens": [1, 2]}]
                return httpx.Response(200, json={"success": True, "data": data, "drained": "drain" in body})
            case "POST /v1/rollout/pause":
                if body.get("pause_id") not in (None, *self.pauses):
                    return error(409, "the pause has expired", "pause_expired")
                pause_id = body.get("pause_id") or f"p{len(self.pauses)}"
                self.pauses.append(pause_id)
                return httpx.Response(200, json={"status": "paused", "pause_id": pause_id, "quiesced": True})
            case "POST /v1/rollout/resume":
                self.pauses.clear()
                return httpx.Response(200, json={"status": "resumed", "paused": False})
            case "GET /v1/rollout/pause_state":
                return httpx.Response(200, json={"paused": bool(self.pauses)})
            case "GET /trajectory/stats":
                return httpx.Response(200, json={"unread": len(self.sessions)})
            case "GET /integration/sidecars":
                return httpx.Response(200, json={"sidecars": []})
            case "GET /integration/capabilities":
                return httpx.Response(200, json={"modes": ["tito"]})
        name = call.removeprefix("GET /session/")
        if name in self.sessions:
            return httpx.Response(200, json={"session_id": name, "state": self.sessions[name]["state"]})
        return error(404, f"unknown session {name}", "session_not_found")

"""A control plane over HTTP for tests of pauses: pauses with leases that a test can lose, and failures on order."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

TOKEN = "control-token"


class ControlServer:
    """`calls` has every call as (path, body). Threads of the server and of the test share it under one lock."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.pauses: set[str] = set()
        self.quiesces = True
        self.version: str | None = None
        self.registry: list[dict[str, Any]] | None = None
        self.failures: dict[str, list[int]] = {}
        """Statuses of the next calls of a path; 0 closes the connection after the call took effect."""
        self.changed = threading.Condition()
        self._names = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._handle({})

            def do_POST(self) -> None:
                self._handle(json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def _handle(self, body: dict[str, Any]) -> None:
                assert self.headers["authorization"] == f"Bearer {TOKEN}"
                reply = server.answer(self.path, body)
                if reply is None:
                    self.close_connection = True
                    self.connection.close()
                    return
                status, content = reply
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """No one listens any more; a second time does nothing."""
        if not self._thread.is_alive():
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        with self.changed:
            self.calls.append((path, body))
            self.changed.notify_all()
            failures = self.failures.get(path)
            status = failures.pop(0) if failures else None
            if status:
                return status, {"error": {"message": f"scripted {status}", "code": "scripted"}}
            reply = self._answer(path, body)
            return None if status == 0 else reply

    def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/integration/sidecars":
            return (404, {"error": {"message": "no such path"}}) if self.registry is None else (
                200, {"sidecars": self.registry}
            )  # fmt: skip
        if path == "/v1/rollout/pause_state":
            return 200, {"paused": bool(self.pauses), "version": self.version}
        pause_id = body.get("pause_id")
        if pause_id is not None and pause_id not in self.pauses:
            return 409, {"error": {"message": f"pause {pause_id} is not in force", "code": "pause_expired"}}
        if path == "/v1/rollout/pause":
            if pause_id is None:
                pause_id = next(iter(self.pauses), None) or self._new_pause()
            running = [] if self.quiesces else ["rid-1"]
            return 200, {
                "status": "paused", "pause_id": pause_id, "quiesced": self.quiesces, "active": len(running),
                "running_request_ids": running,
            }  # fmt: skip
        assert path == "/v1/rollout/resume"
        self.pauses.discard(pause_id)
        return 200, {"status": "resumed", "paused": bool(self.pauses)}

    def _new_pause(self) -> str:
        self._names += 1
        name = f"pause-{self._names}-of-{self._server.server_port}"
        self.pauses.add(name)
        return name

    def lose_pauses(self) -> None:
        """Every lease runs out."""
        with self.changed:
            self.pauses.clear()

    def count(self, path: str) -> int:
        """Calls of a path so far."""
        return sum(called == path for called, _ in self.calls)

    def wait_calls(self, path: str, count: int) -> None:
        """Until a path was called so often."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.count(path) >= count, 30), (path, self.calls)


PAUSE, RESUME, SIDECARS = "/v1/rollout/pause", "/v1/rollout/resume", "/integration/sidecars"

"""A stand-in for a Kubernetes API server, over HTTP: Jobs, their pods, logs and watches, in the API's shapes.

Promise: only what the launcher asks is there, and it is strict: names, paths, selectors, the token and delete
options have to be right. A test plays the Job controller with `finish`, and makes trouble with `faults`. Written
from the API's documentation; no real API server was at hand. One event loop.
"""

from __future__ import annotations

import asyncio
import copy
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TOKEN = "account-token"
NAMESPACE = "agents"
_JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    """The API's `Status` object."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


@dataclass
class Fault:
    """Answers the next call of `method` whose path and query hold `part` instead of doing it (`late`: after)."""

    method: str
    part: str
    code: int
    headers: dict[str, str] = field(default_factory=dict)
    late: bool = False
    drop: bool = False
    """Close the connection without an answer."""


class KubernetesStandIn:
    """`jobs`, `pods` and `logs` by name; `calls` are all calls as `METHOD path`."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.logs: dict[tuple[str, str], str] = {}
        self.faults: list[Fault] = []
        self.calls: list[str] = []
        self.deleted: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.watches = 0
        self.url = ""
        self._version = 100
        self._changed = asyncio.Event()

    # What the tests do.

    async def until(self, condition: Callable[[], object]) -> None:
        """Until the condition holds; looked at whenever something is called or changed."""
        while not condition():
            await self._changed.wait()

    async def created(self) -> str:
        """The name of the one Job, once it is there."""
        await self.until(lambda: self.jobs)
        [name] = self.jobs
        return name

    def finish(self, name: str, kind: str, reason: str, *, exit_code: int | None = 0, **details: Any) -> None:
        """The controller's final condition. The pod's container ended with `exit_code`; None: there is no pod left.
        `message` is the termination message, `terminated` its reason; `pod` more of the pod's status."""
        if exit_code is None:
            self.pods.clear()
        else:
            ended = {
                "exitCode": exit_code,
                "reason": details.get("terminated", "Completed" if exit_code == 0 else "Error"),
                "message": details.get("message", ""),
            }
            container = self.jobs[name]["spec"]["template"]["spec"]["containers"][0]["name"]
            self.pods[f"{name}-x"]["status"] = {
                "phase": "Succeeded" if exit_code == 0 else "Failed",
                "containerStatuses": [{"name": container, "state": {"terminated": ended}}],
                **details.get("pod", {}),
            }
        self.condition(name, kind, reason)

    def condition(self, name: str, kind: str, reason: str = "") -> None:
        """Add a condition to the Job's status."""
        conditions = self.jobs[name].setdefault("status", {}).setdefault("conditions", [])
        conditions.append({"type": kind, "status": "True", "reason": reason, "message": f"because of {reason}"})
        self._change("MODIFIED", name)

    def remove(self, name: str) -> None:
        """Somebody deletes the Job."""
        self._change("DELETED", name)
        del self.jobs[name]

    # What the launcher does.

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.path_qs}")
        self._notify()
        fault = self._fault(request)
        if fault is not None and not fault.late:
            return self._refuse(request, fault)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.json_response(status(401, "Unauthorized", "Unauthorized"), status=401)
        response = await self._answer(request)
        return response if fault is None else self._refuse(request, fault)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path, name = request.path, request.path.rpartition("/")[2]
        match request.method:
            case "POST" if path == _JOBS:
                return await self._create(request)
            case "GET" if path == _JOBS and request.query.get("watch") == "1":
                return await self._watch(request)
            case "GET" if path == f"{_JOBS}/{name}" and name in self.jobs:
                return web.json_response(self.jobs[name])
            case "DELETE" if path == f"{_JOBS}/{name}" and name in self.jobs:
                self.deleted.append(await request.json())
                self.remove(name)
                return web.json_response({"kind": "Status", "status": "Success"})
            case "GET" if path == _PODS:
                owner = request.query["labelSelector"].removeprefix("job-name=")
                items = [pod for pod in self.pods.values() if pod["metadata"]["labels"]["job-name"] == owner]
                return web.json_response({"kind": "PodList", "items": items})
            case "GET" if path.startswith(_PODS) and name == "log":
                return self._log(path.split("/")[-2], request)
        return web.json_response(status(404, "NotFound", f"{path} not found"), status=404)

    async def _create(self, request: web.Request) -> web.Response:
        job = await request.json()
        name = job["metadata"]["name"]
        if name in self.jobs:
            return web.json_response(status(409, "AlreadyExists", f'jobs "{name}" already exists'), status=409)
        self.jobs[name] = job
        self.pods[f"{name}-x"] = {
            "metadata": {"name": f"{name}-x", "labels": {"job-name": name}},
            "status": {"phase": "Running"},
        }
        self._change("ADDED", name)
        return web.json_response(job, status=201)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        name = request.query["fieldSelector"].removeprefix("metadata.name=")
        since = int(request.query["resourceVersion"])
        assert int(request.query["timeoutSeconds"]) > 0
        self.watches += 1
        self._notify()
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        sent = 0
        while True:
            for event in self.events[sent:]:
                sent += 1
                version = int(event["object"]["metadata"].get("resourceVersion", self._version))
                if event["object"]["metadata"].get("name", name) == name and version > since:
                    await response.write(json.dumps(event).encode() + b"\n")
                if event["type"] in ("ERROR", "END"):
                    return response
            await self._changed.wait()

    def end_watches(self, event: dict[str, Any] | None = None) -> None:
        """End every watch, after an `ERROR` event if one is given."""
        end = {"type": "END", "object": {"metadata": {"name": "", "resourceVersion": "0"}}}
        error = {"type": "ERROR", "object": {**(event or {}), "metadata": {}}}
        self._version += 1
        self.events.append(error if event else end)
        self._notify()

    def _log(self, pod: str, request: web.Request) -> web.Response:
        assert int(request.query["limitBytes"]) > 0
        text = self.logs.get((pod, request.query["container"]))
        if pod not in self.pods:
            return web.json_response(status(404, "NotFound", f'pods "{pod}" not found'), status=404)
        if text is None:
            waiting = f'container "{request.query["container"]}" in pod "{pod}" is waiting to start'
            return web.json_response(status(400, "BadRequest", waiting), status=400)
        return web.Response(text=text)

    def _change(self, kind: str, name: str) -> None:
        self._version += 1
        self.jobs[name]["metadata"]["resourceVersion"] = str(self._version)
        self.events.append({"type": kind, "object": copy.deepcopy(self.jobs[name])})
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _fault(self, request: web.Request) -> Fault | None:
        for fault in self.faults:
            if fault.method == request.method and fault.part in request.path_qs:
                self.faults.remove(fault)
                return fault
        return None

    def _refuse(self, request: web.Request, fault: Fault) -> web.Response:
        if fault.drop:
            assert request.transport is not None
            request.transport.close()
        body = status(fault.code, "Trouble", f"trouble {fault.code}")
        return web.json_response(body, status=fault.code, headers=fault.headers)


@asynccontextmanager
async def kubernetes_stand_in(tls: ssl.SSLContext | None = None) -> AsyncIterator[KubernetesStandIn]:
    """A running one, on a free loopback port."""
    stand_in = KubernetesStandIn()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", stand_in.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        scheme = "https" if tls else "http"
        stand_in.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
        yield stand_in
    finally:
        await runner.cleanup()

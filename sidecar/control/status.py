"""Health, readiness and capabilities. `/health` and `/ready` need no token and tell strangers no detail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sidecar.control.trajectories import ARRAYS
from sidecar.generation.engine_parsing import EngineParsing
from sidecar.generation.engine_state import EngineState
from sidecar.generation.gate import SCOPE_ALL
from sidecar.generation.pauses import PAUSE_MODES, PAUSE_SCOPES, Pauses
from sidecar.tito.model import Model
from sidecar.tito.modes import BuildModes

_PROBE_SECONDS = 0.5
"""How long a probe waits for the engine: kubelet gives up after a second, and an engine that hangs is no reason."""


@dataclass(frozen=True, slots=True)
class StatusRoutes:
    """`problems()` lists what keeps the sidecar from serving; the engine's state is not among it, since a restart
    of the engine must not empty a Service, and neither is a pause."""

    problems: Callable[[], list[str]]
    engine: EngineState
    pauses: Pauses
    model: Model
    modes: BuildModes
    parsing: EngineParsing
    routing_replay: bool = False
    context_window: int | None = None
    """The limit on a session's tokens; None where it is the engine's own."""

    def routes(self) -> list[Route]:
        """All routes of the control plane's status."""
        return [*self.probe_routes(), Route("/integration/capabilities", self.capabilities, methods=["GET"])]

    def probe_routes(self) -> list[Route]:
        """What `--health-listen` serves."""
        return [Route("/health", self.health, methods=["GET"]), Route("/ready", self.ready, methods=["GET"])]

    async def health(self, request: Request) -> Response:
        """The process lives."""
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """The process can serve; `?engine=1` also wants the engine to have answered once, for startup probes."""
        problems = self.problems()
        await self.engine.refresh(_PROBE_SECONDS)
        if request.query_params.get("engine") == "1" and not self.engine.answered:
            problems.append("the engine has not answered yet")
        paused = self.pauses.gate.find(SCOPE_ALL) is not None
        body = {"ready": not problems, "problems": problems, "engine": self.engine.state, "paused": paused}
        return _json(body, 503 if problems else 200)

    async def capabilities(self, request: Request) -> Response:
        """`GET /integration/capabilities`."""
        info = await self.engine.refresh()
        return _json(
            {
                "token_build_modes": [self.modes.token_build_mode],
                "history_thinking": self.modes.recorded()["history_thinking"],
                "pause_modes": list(PAUSE_MODES),
                "pause_scopes": list(PAUSE_SCOPES),
                "routing_replay": self.routing_replay,
                "context_window": self.context_window,
                "partial_rollout": True,
                "trajectory_arrays": list(ARRAYS),
                "protocols": ["chat_completions"],
                "tokenizer": self.model.name,
                "tokenizer_sha256": self.model.tokenizer_sha256,
                "model_family": self.model.family.name,
                "template_sha256": self.model.template_sha256,
                "template_verdict": self.model.verdict.outcome,
                "template_failures": self.model.verdict.failures,
                "parsers": self._parsers(),
                "tools": self.model.verdict.tools and self.model.parsers.formats.calls_name is not None,
                "engine": {
                    "model_id": info.model_id,
                    "version": info.version,
                    "context_length": info.context_length,
                    "weight_version": info.weight_version,
                    "incremental_streaming_output": info.incremental,
                    "tool_call_parser": info.tool_call_parser,
                    "reasoning_parser": info.reasoning_parser,
                    "returns_routed_experts": info.returns_routed_experts,
                    "error": self.engine.error,
                    "workers": self.engine.workers,
                },
            }
        )

    def _parsers(self) -> dict[str, Any]:
        formats = self.model.parsers.formats
        return {
            "tool_calls": formats.calls_name,
            "reasoning": formats.reasoning_name,
            "engine": None
            if formats.engine is None
            else {"name": formats.engine.name, "asked": self.parsing.asked, "failed": self.parsing.failed},
            "warnings": list(formats.warnings),
        }


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status_code=status, media_type="application/json")

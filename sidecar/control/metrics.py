"""`GET /metrics`: the sidecar's state and what it did since it started, for Prometheus.

Everything is read when it is asked for; what counts does so in plain numbers of its own. One event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sidecar.generation.controller import Controller
from sidecar.generation.engine_state import EngineState
from sidecar.generation.gate import SCOPE_ALL, Gate
from sidecar.sessions.registry import Registry
from sidecar.sessions.retention import RetentionTotals
from sidecar.store.protocol import Store
from sidecar.web.counted import RequestCounts

_ENGINE_SECONDS = 0.5
"""How long a scrape waits for the engine."""
_ENGINE_STATES = ("up", "degraded", "down")


@dataclass(frozen=True, slots=True)
class Observed:
    """The parts that are looked at. `problems` as in `StatusRoutes`; `requests` are those of the data plane."""

    problems: Callable[[], list[str]]
    engine: EngineState
    controller: Controller
    gate: Gate
    registry: Registry
    store: Store
    retention: RetentionTotals
    requests: RequestCounts


class MetricsRoute:
    """The endpoint, with a registry of its own."""

    def __init__(self, observed: Observed) -> None:
        self._engine = observed.engine
        self._metrics = CollectorRegistry()
        self._metrics.register(_Sidecar(observed))
        ProcessCollector(registry=self._metrics)

    def routes(self) -> list[Route]:
        """The route of the control plane."""
        return [Route("/metrics", self.handle, methods=["GET"])]

    async def handle(self, request: Request) -> Response:
        """The exposition, in the format that the scraper prefers."""
        await self._engine.refresh(_ENGINE_SECONDS)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._metrics), headers={"Content-Type": content_type})


class _Sidecar(Collector):
    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def collect(self) -> Iterable[Metric]:
        yield from self._state()
        yield from self._sessions()
        yield from self._steps()
        yield from self._store()

    def _state(self) -> Iterable[Metric]:
        seen = self._observed
        info = seen.engine.info
        yield InfoMetricFamily(
            "tito",
            "Versions, and the weights that the engine named last",
            {
                "version": version("tito-sidecar"),
                "engine_version": info.version or "",
                "weight_version": info.weight_version or "",
            },
        )
        yield _gauge("tito_ready", "1 while GET /ready is 200", not seen.problems())
        states = GaugeMetricFamily("tito_engine_state", "1 for the state that the engine is in", labels=["state"])
        for state in _ENGINE_STATES:
            states.add_metric([state], float(seen.engine.state == state))
        yield states
        paused = seen.gate.find(SCOPE_ALL) is not None
        yield _gauge("tito_paused", "1 while a pause of everything is in force", paused)
        yield _gauge("tito_pauses", "Pauses in force, of any scope", len(seen.gate.pauses))
        yield _gauge("tito_calls_held", "Calls that wait for the end of a pause", seen.gate.suspended)
        yield _gauge("tito_engine_calls", "Engine calls in flight", len(seen.controller.active))
        yield _gauge("tito_requests", "Requests on the data plane that are not over", seen.requests.in_flight)
        answered = CounterMetricFamily(
            "tito_requests_answered",
            "Requests on the data plane by HTTP status; 0 for those whose client left before there was one",
            labels=["status"],
        )
        for status, count in seen.requests.answered.items():
            answered.add_metric([str(status)], count)
        yield answered

    def _sessions(self) -> Iterable[Metric]:
        memory, totals = self._observed.registry.memory, self._observed.retention
        sessions = memory.values()
        yield _gauge("tito_sessions", "Open sessions in memory", len(sessions))
        held = sum(session.size.held for session in sessions)
        yield _gauge("tito_session_bytes", "What they hold, as --max-total-bytes counts it", held)
        yield _gauge("tito_steps_under_way", "Steps that run or wait for a marked retry", memory.under_way())
        yield _counter("tito_sessions_unloaded", "Sessions that left memory unused", totals.unloaded)
        expired = CounterMetricFamily(
            "tito_sessions_expired",
            "Sessions that retention dropped: drained, finalized but never drained, or never finalized",
            labels=["was"],
        )
        expired.add_metric(["drained"], totals.expired - totals.expired_unread - totals.expired_open)
        expired.add_metric(["unread"], totals.expired_unread)
        expired.add_metric(["open"], totals.expired_open)
        yield expired

    def _steps(self) -> Iterable[Metric]:
        counts = self._observed.registry.counts
        steps = CounterMetricFamily(
            "tito_steps", "Steps stored for good, by how they ended", labels=["state", "finish_reason"]
        )
        for labels, count in counts.steps.items():
            steps.add_metric(labels, count)
        yield steps
        segments = CounterMetricFamily(
            "tito_segments",
            "Segments begun, by why the step did not append to an earlier one (root: a conversation's first)",
            labels=["reason"],
        )
        for reason, count in counts.segments.items():
            segments.add_metric([reason], count)
        yield segments
        yield _counter("tito_context_tokens", "Tokens appended before generations", counts.context_tokens)
        yield _counter("tito_output_tokens", "Tokens sampled", counts.output_tokens)
        yield _counter(
            "tito_interruptions",
            "Engine calls that a pause, a preemption or a lost connection ended early",
            counts.interruptions,
        )

    def _store(self) -> Iterable[Metric]:
        store = self._observed.store
        totals = store.totals()
        yield _gauge("tito_store_writable", "0 while the store cannot write", store.failure() is None)
        yield _gauge("tito_store_waiting", "Writes that wait for a transaction", totals.waiting)
        commits = SummaryMetricFamily("tito_store_commit_seconds", "Transactions of the store's writer")
        commits.add_metric([], totals.commits, totals.seconds)
        yield commits
        yield _counter("tito_store_writes", "Rows' writes that were committed", totals.writes)
        yield _counter("tito_store_failures", "Transactions that failed and stored nothing", totals.failed)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value)

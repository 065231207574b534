"""The sidecar as one object: wires the parts together, starts them in order and stops them in reverse.

All parts live on one event loop. Nothing here is more than wiring.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import AsyncExitStack
from dataclasses import asdict

from adapters.engines.base import EngineInfo
from adapters.engines.routed_experts import ExpertShape
from sidecar.config import Settings, SettingsError, is_loopback
from sidecar.control.app import build_control, build_probes
from sidecar.control.metrics import MetricsRoute, Observed
from sidecar.control.rollout import RolloutRoutes
from sidecar.control.sessions import SessionRoutes
from sidecar.control.sidecars import SidecarRoutes
from sidecar.control.status import StatusRoutes
from sidecar.control.trajectories import TrajectoryRoutes
from sidecar.engine_start import ask_engine, check_engine_parser, load_model
from sidecar.gateway.app import build_gateway
from sidecar.gateway.chat import ChatCompletions
from sidecar.gateway.exchange import Pace
from sidecar.gateway.identity import IdentityRules
from sidecar.gateway.models import Models
from sidecar.generation.controller import Controller, Limits
from sidecar.generation.engine_state import EngineState
from sidecar.generation.pauses import Pauses
from sidecar.generation.transport import EngineTransport
from sidecar.generation.workers import Workers
from sidecar.interception import Interception
from sidecar.model_files import read_config
from sidecar.policies import modes_of, policy_of
from sidecar.replicas.addresses import shared_url
from sidecar.replicas.membership import Membership
from sidecar.routing_replay import replay_shape
from sidecar.secrets_files import private_dir, secret_file
from sidecar.sessions.admission import Admission
from sidecar.sessions.registry import Registry
from sidecar.sessions.retention import Retention, RetentionRules
from sidecar.store import open_store
from sidecar.store.protocol import Store
from sidecar.tito.model import Model
from sidecar.web.counted import Counted, RequestCounts
from sidecar.web.listener import Listener

log = logging.getLogger(__name__)

_NO_ENGINE = EngineInfo(
    model_id="model",
    tokenizer_path=None,
    context_length=None,
    weight_version=None,
    incremental=None,
    version=None,
    tool_call_parser=None,
    reasoning_parser=None,
)


class Sidecar:
    """Use as `async with Sidecar(settings) as sidecar`; the listeners are up inside the block."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.gateway: Listener
        self.control: Listener
        self.interception: Interception | None = None
        self.control_token = ""
        self.registry: Registry
        self.controller: Controller
        self.pauses: Pauses
        self.members: Membership
        self.retention: Retention
        self.model: Model
        self.experts: ExpertShape | None = None
        self._stack = AsyncExitStack()
        self._store: Store
        self._workers: Workers
        self._listeners: list[Listener] = []

    async def __aenter__(self) -> Sidecar:
        """Start everything. Raises the errors of settings, model files, store and listeners."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish or cancel what runs, write what is queued, close."""
        self.registry.stopping = True
        await self.registry.stop(self.settings.drain_seconds)
        await self._stack.aclose()

    def problems(self) -> list[str]:
        """What keeps the sidecar from serving; empty when it is ready."""
        found = [listener.problem for listener in self._listeners]
        found.append(self._store_problem())
        found.append(self.members.problem and f"the lease cannot be renewed: {self.members.problem}")
        found.append(self.interception.problem if self.interception is not None else None)
        found.append("the sidecar is shutting down" if self.registry.stopping else None)
        return [problem for problem in found if problem is not None]

    def _store_problem(self) -> str | None:
        failure = self._store.failure()
        return f"the store cannot write: {failure}" if failure is not None else None

    async def _start(self) -> None:
        settings = self.settings
        private_dir(settings.state_dir)
        self.control_token = settings.control_token or secret_file(settings.state_dir / "control-token")
        secret = (settings.session_secret or secret_file(settings.state_dir / "session-secret")).encode()
        assert settings.store is not None
        self._store = open_store(settings.store, timeout=settings.store_timeout)
        self.members = Membership(self._store, settings.store, settings.state_dir, secret, settings.lease_seconds)
        self._stack.push_async_callback(self.members.stop)  # after the store has written what is queued
        await self._store.start()
        self._stack.push_async_callback(self._store.close)
        transport = EngineTransport(
            settings.engine_url, settings.engine_api_key, settings.engine_admin_key, settings.engine_silence
        )
        self._workers = transport.workers
        await transport.start()
        self._stack.push_async_callback(transport.close)
        self.pauses = Pauses(self._store, settings.pause_lease_seconds, self.members.claims.sidecar_id)
        self._stack.callback(self.pauses.close)
        self.controller = Controller(
            transport,
            self.pauses.gate,
            Limits(settings.engine_retries, settings.max_stalled_resumes),
            record_versions=settings.record_token_versions,
        )
        engine = EngineState(transport, self.controller, _NO_ENGINE)
        info = await ask_engine(settings, transport)
        if info is not None:
            engine.accept(info)
        self.model = await asyncio.to_thread(self._load_model, engine.info)
        await check_engine_parser(settings, self.model, self.controller.parsing)
        for warning in self.model.parsers.formats.warnings:
            log.warning("%s", warning)
        window = settings.context_window or engine.info.context_length
        if window is None:
            raise SettingsError("the engine does not say how long its context is; set --context-window")
        name = settings.tokenizer or engine.info.tokenizer_path or ""
        config = await asyncio.to_thread(read_config, name) if settings.use_rollout_routing_replay else {}
        self.experts = replay_shape(settings, engine.info, config)
        self.registry = Registry(
            self._store, self.members.claims, self.controller, self.model, policy_of(settings, self.experts)
        )
        rules = RetentionRules(settings.retention, settings.session_timeout, settings.tombstones)
        self.retention = Retention(self._store, self.registry, rules, self.members.claims.sidecar_id)
        await self._listen(engine, window, secret)
        self.retention.start()
        self._stack.push_async_callback(self.retention.stop)

    def _load_model(self, info: EngineInfo) -> Model:
        return load_model(self.settings, info)

    async def _listen(self, engine: EngineState, window: int, secret: bytes) -> None:
        settings = self.settings
        identity = IdentityRules(
            secret=secret,
            keys_required=settings.data_auth == "session-key",
            fallback=settings.session_id or self._process_session(),
        )
        intercept_secret = secrets.token_urlsafe(32)
        chat = ChatCompletions(
            registry=self.registry,
            forwarding=self.members.forwarding,
            admission=Admission(self.model, self.controller, policy_of(settings, self.experts), window),
            model=self.model,
            identity=identity,
            pace=Pace(settings.heartbeat_interval, settings.slow_reader, settings.json_keepalive == "on"),
            max_body=settings.max_body,
            intercept_secret=intercept_secret,
        )
        gateway_app = build_gateway(chat, Models(engine, identity, int(time.time())))
        requests = RequestCounts()
        self.gateway = self._bound(Listener(Counted(gateway_app, requests), settings.listen, "--listen"))
        base_url = (settings.advertise_url or self.gateway.url).rstrip("/")
        status = StatusRoutes(
            self.problems,
            engine,
            self.pauses,
            self.model,
            modes_of(settings),
            self.controller.parsing,
            self.experts is not None,
            self.settings.context_window,
        )
        control_app = build_control(
            self.control_token,
            SessionRoutes(self.registry, self.members.forwarding, base_url, secret),
            SidecarRoutes(self.members.claims),
            TrajectoryRoutes(
                self._store, lambda: asdict(self.retention.totals), lambda: self.registry.memory.under_way()
            ),
            RolloutRoutes(self.pauses, self.controller, engine, self._workers),
            status,
            MetricsRoute(
                Observed(
                    self.problems,
                    engine,
                    self.controller,
                    self.pauses.gate,
                    self.registry,
                    self._store,
                    self.retention.totals,
                    requests,
                )
            ),
        )
        self.control = self._bound(Listener(control_app, settings.control_listen, "--control-listen"))
        await self._join()
        await self.gateway.start()
        await self.control.start()
        if settings.health_listen is not None:
            await self._bound(Listener(build_probes(status), settings.health_listen, "--health-listen")).start()
        if settings.intercept:
            self.interception = Interception(settings, self.gateway.local_address, intercept_secret, secret)
            await self.interception.start()
            self._stack.push_async_callback(self.interception.stop)

    async def _join(self) -> None:
        """Register first, read pauses second: a trainer that pauses all sidecars misses none that serves."""
        settings = self.settings
        await self.members.register(
            shared_url(self.gateway, settings.advertise_url),
            shared_url(self.control, settings.advertise_control_url, settings.advertise_url),
            self.registry.compare,
        )
        await self.pauses.restore(self.members.predecessor)

    def _bound(self, listener: Listener) -> Listener:
        listener.bind()
        self._listeners.append(listener)
        self._stack.push_async_callback(listener.stop)
        return listener

    def _process_session(self) -> str | None:
        """On loopback with no secret set, calls that name no session share one per process."""
        if is_loopback(self.settings.listen) and self.settings.session_secret is None:
            return f"process-{secrets.token_hex(8)}"
        return None

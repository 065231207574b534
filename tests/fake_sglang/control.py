"""The stand-in's other routes, and what is common to all: keys, error shapes, the record of every call.

Promise: paths, bodies and status codes of SGLang 0.5.23; a path it does not have (`/workers` is the router's)
is 404.
Concurrency: one handler task per call; state changes go through `EngineState`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.fake_sglang import generate, wire
from tests.fake_sglang.auth import authorised
from tests.fake_sglang.contract import parse_json
from tests.fake_sglang.options import PAUSE_MODES
from tests.fake_sglang.recorder import RecordedCall

if TYPE_CHECKING:
    from tests.fake_sglang.server import FakeSGLang

NOT_FLUSHED = (
    "Weights were updated, but the cache was not flushed because requests are still running or queued. "
    "Retract or finish them, then call /flush_cache."
)
CALL = web.RequestKey("call", RecordedCall)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(engine: "FakeSGLang") -> web.Application:
    """The whole server as one aiohttp application."""
    routes = Routes(engine)

    @web.middleware
    async def front(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await routes.front(request, handler)

    app = web.Application(middlewares=[front], client_max_size=1 << 30)
    add = app.router.add_route
    for method in ("POST", "PUT"):
        add(method, "/generate", routes.generate)
    add("POST", "/parse_function_call", routes.parse_function_call)
    add("POST", "/separate_reasoning", routes.separate_reasoning)
    add("POST", "/abort_request", routes.abort_request)
    add("POST", "/pause_generation", routes.pause_generation)
    add("POST", "/continue_generation", routes.continue_generation)
    add("POST", "/update_weight_version", routes.update_weight_version)
    add("POST", "/update_weights_from_disk", routes.update_weights_from_disk)
    for method in ("GET", "POST"):
        add(method, "/flush_cache", routes.flush_cache)
    for path in ("/model_info", "/get_model_info"):
        add("GET", path, routes.model_info)
    for path in ("/server_info", "/get_server_info"):
        add("GET", path, routes.server_info)
    for path in ("/health", "/health_generate"):
        add("GET", path, routes.health)
    add("GET", "/ready", routes.ready)
    add("GET", "/ping", routes.ping)
    add("GET", "/v1/models", routes.models)
    add("GET", "/v1/models/{model:.+}", routes.model)
    return app


class Routes:
    """One method per path."""

    def __init__(self, engine: "FakeSGLang") -> None:
        self.engine = engine

    async def front(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Record, check the key, and give errors SGLang's shape."""
        call = RecordedCall(
            order=self.engine.recorder.next_order(),
            method=request.method,
            path=request.path,
            headers=request.headers.copy(),
            body=await request.read(),
        )
        request[CALL] = call
        self.engine.recorder.calls.append(call)
        response = await self._answer(request, handler)
        call.status = response.status
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        options = self.engine.options
        if not authorised(request.path, request.headers.get("Authorization"), options.api_key, options.admin_key):
            return web.json_response({"error": "Unauthorized"}, status=401)
        try:
            return await handler(request)
        except wire.RefusalError as refusal:
            return web.json_response(refusal.body, status=refusal.status)
        except web.HTTPException as error:
            return web.json_response({"detail": error.reason}, status=error.status)

    async def _json(self, request: web.Request) -> dict[str, Any]:
        body = parse_json(request.headers.get("Content-Type", ""), await request.read())
        if not isinstance(body, dict):
            raise wire.RefusalError.validation("1 validation error:\n  Input should be a valid dictionary")
        request[CALL].body = body
        return body

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        # Unlike a generation, a control call runs on when its client leaves.
        await asyncio.shield(self.engine.intake.spawn(work))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        return await generate.handle(self.engine, request, request[CALL])

    async def parse_function_call(self, request: web.Request) -> web.StreamResponse:
        return await self.engine.parsing.parse_function_call(request, await self._json(request))

    async def separate_reasoning(self, request: web.Request) -> web.StreamResponse:
        return await self.engine.parsing.separate_reasoning(request, await self._json(request))

    async def abort_request(self, request: web.Request) -> web.Response:
        body = await self._json(request)
        self.engine.state.abort(body.get("rid") or "", abort_all=bool(body.get("abort_all")))
        return web.Response()

    async def pause_generation(self, request: web.Request) -> web.Response:
        mode = (await self._json(request)).get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise wire.RefusalError.validation(f"1 validation error:\n  mode: Input should be one of {PAUSE_MODES}")
        await self._to_the_end(self.engine.state.pause(mode))
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: web.Request) -> web.Response:
        await self._json(request)
        await self._to_the_end(self.engine.state.resume())
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def update_weight_version(self, request: web.Request) -> web.Response:
        body = await self._json(request)
        version = _required_string(body, "new_version")
        if body.get("abort_all_requests", True):
            self.engine.state.abort(abort_all=True)
        self.engine.state.set_version(version)
        message = f"Weight version updated to {version}"
        return web.json_response({"success": True, "message": message, "new_version": version})

    async def update_weights_from_disk(self, request: web.Request) -> web.Response:
        body = await self._json(request)
        path = _required_string(body, "model_path")
        version = body.get("weight_version")
        abort_all, flush = bool(body.get("abort_all_requests", False)), bool(body.get("flush_cache", True))
        done: list[bool] = []

        async def update() -> None:
            done.append(await self.engine.state.update_weights(version, abort_all=abort_all, flush=flush))

        await self._to_the_end(update())
        if not done[0]:
            refusal = {"success": False, "message": NOT_FLUSHED, "num_paused_requests": 0}
            return web.json_response(refusal, status=400)
        self.engine.options.model_path = path
        message = "Succeeded to update model weights."
        if version is not None:
            message += f" Weight version updated to {version}."
        return web.json_response({"success": True, "message": message, "num_paused_requests": 0})

    async def flush_cache(self, request: web.Request) -> web.Response:
        timeout = float(request.query.get("timeout", 0))
        flushed = self.engine.state.flush_cache()
        if not flushed and timeout > 0:
            await self.engine.wait_idle(timeout)
            flushed = self.engine.state.flush_cache()
        if not flushed:
            return web.Response(status=400, text="Flush cache failed.\n")
        return web.Response(text="Cache flushed.\n")

    async def model_info(self, _: web.Request) -> web.Response:
        options = self.engine.options
        return web.json_response(
            {
                "model_path": options.model_path,
                "served_model_name": self.engine.served_model_name,
                "tokenizer_path": options.tokenizer_path or options.model_path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": self.engine.state.named_version,
                "load_format": "auto",
                "reasoning_parser": options.reasoning_parser,
                "tool_call_parser": options.tool_call_parser,
                "disaggregation_mode": "null",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "fake",
                "architectures": ["FakeForCausalLM"],
            }
        )

    async def server_info(self, _: web.Request) -> web.Response:
        options, state = self.engine.options, self.engine.state
        return web.json_response(
            {
                "model_path": options.model_path,
                "served_model_name": self.engine.served_model_name,
                "tokenizer_path": options.tokenizer_path or options.model_path,
                "context_length": options.context_length,
                "skip_tokenizer_init": state.vocabulary.tokenizer is None,
                "incremental_streaming_output" if options.since(10) else "stream_output": options.incremental,
                "stream_interval": 1,
                "reasoning_parser": options.reasoning_parser,
                "tool_call_parser": options.tool_call_parser,
                "enable_return_routed_experts": options.experts is not None,
                "max_running_requests": options.max_running_requests,
                "internal_states": [state.snapshot()],
                "version": options.version if options.version_spans or not options.since(19) else "0.5.18",
                "frontend": "python",
            }
        )

    async def health(self, _: web.Request) -> web.Response:
        """Generates a token, so it blocks and fails while paused, and leaves the server marked unhealthy."""
        state, timings = self.engine.state, self.engine.options.timings
        await asyncio.sleep(timings.health if state.paused is None else timings.health_paused)
        state.healthy = state.paused is None
        return web.Response(status=200 if state.healthy else 503)

    async def ready(self, _: web.Request) -> web.Response:
        state = self.engine.state
        return web.Response(status=200 if state.healthy and state.paused is None else 503)

    async def ping(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.engine.state.healthy else 503)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model_card()]})

    async def model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name == self.engine.served_model_name:
            return web.json_response(self._model_card())
        error = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return web.json_response({"error": error}, status=404)

    def _model_card(self) -> dict[str, Any]:
        name = self.engine.served_model_name
        return {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self.engine.options.context_length,
        }


def _required_string(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise wire.RefusalError.validation(
            f"1 validation error:\n  {name}: Input should be a valid string, got {value!r}"
        )
    return value

"""The embedded engine's HTTP face: the part of SGLang 0.5.23's API that the sidecar and trainers use.

Promise: same paths, bodies and statuses as SGLang; what this engine cannot do is refused in words. The
application's lifespan starts and stops the engine. Concurrency: one event loop; nothing here blocks it.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast, get_args

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sidecar.local_engine import wire
from sidecar.local_engine.engine import LocalEngine, PauseMode
from sidecar.local_engine.errors import LlamaError, RequestRefusedError
from sidecar.local_engine.model_files import MODEL_NAME
from sidecar.local_engine.replies import GenerationReply, RefusedStream

_WIRE_VERSION = "0.5.23"  # the SGLang version whose API this is


def build_app(engine: LocalEngine) -> Starlette:
    """Return the application; give it to an ASGI server that runs lifespan events (uvicorn does)."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await engine.start()
        try:
            yield
        finally:
            await engine.stop()

    return Starlette(
        routes=[*_generation_routes(engine), *_control_routes(engine), *_info_routes(engine)],
        lifespan=lifespan,
        exception_handlers={RequestRefusedError: _refused, LlamaError: _failed},
    )


def _generation_routes(engine: LocalEngine) -> list[Route]:
    async def generate(request: Request) -> ASGIApp:
        body = await _json_body(request)
        try:
            checked = wire.parse_generate(
                body, context_length=engine.context_length, vocab_size=engine.files.vocab_size
            )
            return GenerationReply(engine, engine.submit(checked))
        except RequestRefusedError as error:
            streams = isinstance(body, dict) and body.get("stream") is True
            if streams and not error.contract:
                return RefusedStream(wire.stream_error(error))
            raise

    async def abort_request(request: Request) -> Response:
        body = await _json_object(request)
        if body.get("abort_all") is True:
            await engine.abort_all()
        elif isinstance(body.get("rid"), str):
            engine.abort(body["rid"])
        return Response(status_code=200)

    return [
        _route("/generate", generate, "POST", "PUT"),
        _route("/abort_request", abort_request, "POST"),
    ]


def _control_routes(engine: LocalEngine) -> list[Route]:
    async def pause_generation(request: Request) -> Response:
        await engine.pause(_pause_mode((await _json_object(request)).get("mode")))
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(request: Request) -> Response:
        await _json_object(request)
        engine.resume()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def update_weight_version(request: Request) -> Response:
        body = await _json_object(request)
        version = body.get("new_version")
        abort_all = body.get("abort_all_requests", True)
        if not isinstance(version, str) or not version or not isinstance(abort_all, bool):
            raise RequestRefusedError("new_version must be a non-empty string and abort_all_requests a boolean")
        await engine.set_weight_version(version, abort_all)
        message = f"Weight version updated to {version}"
        return JSONResponse({"success": True, "message": message, "new_version": version})

    async def flush_cache(request: Request) -> Response:
        if engine.num_running:
            return PlainTextResponse(f"Cache not flushed: {engine.num_running} requests are running.\n", 400)
        # A trainer flushes because cached states belong to old weights. Here they never do.
        return PlainTextResponse("Nothing to flush: the weights of this engine never change.\n")

    return [
        _route("/pause_generation", pause_generation, "POST"),
        _route("/continue_generation", continue_generation, "POST"),
        _route("/update_weight_version", update_weight_version, "POST"),
        _route("/flush_cache", flush_cache, "GET", "POST"),
    ]


def _info_routes(engine: LocalEngine) -> list[Route]:
    created = int(time.time())
    card = {
        "id": MODEL_NAME,
        "object": "model",
        "created": created,
        "owned_by": "tito-sidecar",
        "root": MODEL_NAME,
        "parent": None,
        "max_model_len": engine.context_length,
    }

    async def model_info(request: Request) -> Response:
        return JSONResponse(_model_info(engine))

    async def server_info(request: Request) -> Response:
        return JSONResponse(_server_info(engine))

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [card]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name == MODEL_NAME:
            return JSONResponse(card)
        message = f"The model '{name}' does not exist; this engine serves {MODEL_NAME}"
        error = {"message": message, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
        return JSONResponse({"error": error}, 404)

    async def health(request: Request) -> Response:
        return Response(status_code=200 if engine.started else 503)

    async def ready(request: Request) -> Response:
        return Response(status_code=200 if engine.started and not engine.paused else 503)

    return [
        _route("/model_info", model_info, "GET"),
        _route("/server_info", server_info, "GET"),
        _route("/v1/models", models, "GET"),
        _route("/v1/models/{name}", model, "GET"),
        _route("/health", health, "GET"),
        _route("/ready", ready, "GET"),
    ]


def _model_info(engine: LocalEngine) -> dict[str, Any]:
    return {
        "model_path": str(engine.files.gguf),
        "served_model_name": MODEL_NAME,
        "tokenizer_path": str(engine.files.tokenizer_dir),
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": engine.weight_version,
        "load_format": "gguf",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
    }


def _server_info(engine: LocalEngine) -> dict[str, Any]:
    return {
        "version": _WIRE_VERSION,
        "engine": "tito-sidecar embedded engine (llama.cpp)",
        "logprobs": "of the model's own distribution: temperature 1, no truncation, no penalty",
        "model_path": str(engine.files.gguf),
        "served_model_name": MODEL_NAME,
        "tokenizer_path": str(engine.files.tokenizer_dir),
        "weight_version": engine.weight_version,
        "incremental_streaming_output": True,
        "skip_tokenizer_init": False,
        "enable_return_routed_experts": False,
        "context_length": engine.context_length,
        "max_running_requests": engine.slots,
        "random_seed": engine.seed,
        "internal_states": [{"num_running_requests": engine.num_running, "paused": engine.paused}],
    }


def _route(path: str, endpoint: Any, *methods: str) -> Route:
    return Route(path, endpoint, methods=list(methods))


def _pause_mode(value: object) -> PauseMode:
    for mode in get_args(PauseMode):
        if value == mode or (value is None and mode == "abort"):
            return cast(PauseMode, mode)
    raise RequestRefusedError(f"mode must be one of {', '.join(get_args(PauseMode))}, got {value!r}")


async def _json_body(request: Request) -> object:
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise RequestRefusedError("the request needs the header content-type: application/json")
    try:
        return orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise RequestRefusedError(f"the body is not JSON: {error}") from error


async def _json_object(request: Request) -> dict[str, Any]:
    """Read a control request's body; an empty one means all defaults."""
    if not await request.body():
        return {}
    body = await _json_body(request)
    if not isinstance(body, dict):
        raise RequestRefusedError("the body must be a JSON object")
    return body


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefusedError)
    return JSONResponse(wire.error_body(error), 400)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse(wire.http_error(503, str(error)), 503)

"""The JSON of SGLang's /generate: requests in, replies and stream chunks out.

Promise: shapes of SGLang 0.5.23 with `--incremental-streaming-output`: in a stream `text`, `output_ids` and
`output_token_logprobs` are what is new, `completion_tokens` and `output_token_logprobs_length` are totals.
Concurrency: pure functions over one generation.
"""

import time
import uuid
from typing import Any

from sidecar.local_engine.errors import RequestRefusedError
from sidecar.local_engine.generation import GenerateRequest, Generation
from sidecar.local_engine.sampling import SamplingParams, parse_sampling_params

# Fields that would change the reply in a way this engine cannot: refused unless absent, null, false, 0 or empty.
_UNSUPPORTED = (
    "input_embeds",
    "image_data",
    "audio_data",
    "video_data",
    "top_logprobs_num",
    "token_ids_logprob",
    "return_hidden_states",
    "session_params",
    "session_id",
    "lora_path",
    "custom_logit_processor",
)


def parse_generate(body: object, *, context_length: int, vocab_size: int) -> GenerateRequest:
    """Check the body of POST /generate; raise RequestRefusedError with SGLang's wording.

    Unknown top-level keys are ignored, as SGLang does.
    """
    if not isinstance(body, dict):
        raise RequestRefusedError("the body must be a JSON object", contract=True)
    for name in ("stream", "return_logprob", "return_text_in_logprobs", "return_prompt_token_ids"):
        if not isinstance(body.get(name), bool | None):
            raise RequestRefusedError(
                f"invalid type: {type(body[name]).__name__} `{body[name]}`, expected a boolean at `{name}`",
                contract=True,
            )
    params = parse_sampling_params(body.get("sampling_params"))
    for name in _UNSUPPORTED:
        if body.get(name):
            raise RequestRefusedError(f"{name} is not supported by the embedded engine; leave it out")
    input_ids = _input_ids(body, vocab_size)
    start = body.get("logprob_start_len")
    if start is not None and start != -1 and not (isinstance(start, int) and start >= len(input_ids)):
        raise RequestRefusedError(
            f"logprob_start_len is {start}; the embedded engine gives no logprobs of the input: -1"
        )
    return GenerateRequest(
        rid=_rid(body.get("rid")),
        input_ids=input_ids,
        params=params,
        max_new_tokens=_fit(
            params, len(input_ids), "max_new_tokens" in (body.get("sampling_params") or {}), context_length
        ),
        stream=body.get("stream") or False,
        return_logprob=body.get("return_logprob") or False,
        return_text_in_logprobs=body.get("return_text_in_logprobs") or False,
        return_prompt_token_ids=body.get("return_prompt_token_ids") or False,
    )


def _input_ids(body: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    ids = body.get("input_ids")
    if not isinstance(ids, list) or not ids:
        raise RequestRefusedError("the embedded engine takes `input_ids`: a list of at least one token id")
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise RequestRefusedError(
                f"input_ids must be a flat list of integers (one request per call), got {token_id!r}"
            )
        # A real SGLang 0.5.23 does not check the lower bound, and dies.
        if not 0 <= token_id < vocab_size:
            raise RequestRefusedError(
                f"input_ids holds {token_id}, outside the vocabulary: ids are 0 to {vocab_size - 1}"
            )
    return tuple(ids)


def _rid(rid: object) -> str:
    if rid is None:
        return uuid.uuid4().hex
    if isinstance(rid, str) and rid:
        return rid
    raise RequestRefusedError(f"rid must be a non-empty string, got {rid!r}")


def _fit(params: SamplingParams, prompt: int, explicit: bool, context_length: int) -> int:
    """Return how many tokens may be sampled. A limit the caller gave must fit; the default is cut to fit."""
    if prompt >= context_length:
        raise RequestRefusedError(
            f"The input ({prompt} tokens) is longer than the model's context length ({context_length} tokens)."
        )
    room = context_length - prompt
    limit = params.max_new_tokens
    if limit is None or (limit > room and not explicit):
        return room
    if limit > room:
        raise RequestRefusedError(
            f"Requested token count exceeds the model's maximum context length of {context_length} tokens. "
            f"You requested a total of {prompt + limit} tokens: {prompt} tokens from the input messages and "
            f"{limit} tokens for the completion. Please reduce the number of tokens in the input messages or "
            "the completion to fit within the limit."
        )
    return limit


def reply(generation: Generation, since: int = 0) -> dict[str, Any]:
    """Return a stream chunk with what came after the first `since` tokens; `since=0` at the end: the reply."""
    body: dict[str, Any] = {
        "text": generation.text.take(),
        "output_ids": generation.output_ids[since:],
        "meta_info": _meta_info(generation, since),
    }
    if generation.request.return_prompt_token_ids:
        body["prompt_token_ids"] = list(generation.request.input_ids)
    return body


def _meta_info(generation: Generation, since: int) -> dict[str, Any]:
    request = generation.request
    meta: dict[str, Any] = {"id": request.rid, "finish_reason": generation.finish}
    count = len(generation.output_ids)
    if generation.admitted or generation.finish is None or generation.finish["type"] != "abort":
        meta["prompt_tokens"] = len(request.input_ids)
        meta["cached_tokens"] = generation.cached_tokens
        meta["num_retractions"] = generation.num_retractions
        meta["reasoning_tokens"] = 0
    meta["weight_version"] = generation.version
    meta["completion_tokens"] = count
    if request.return_logprob:
        meta["input_token_logprobs"] = []
        meta["output_token_logprobs"] = _logprobs(generation, since)
        meta["output_token_logprobs_length"] = count
    if generation.finish is not None:
        meta["weight_versions"] = [
            {"version": span.version, "start": span.start, "end": span.end} for span in generation.spans
        ]
        meta["e2e_latency"] = time.monotonic() - generation.started
    return meta


def _logprobs(generation: Generation, since: int) -> list[list[Any]]:
    pairs = zip(generation.logprobs[since:], generation.output_ids[since:], strict=True)
    if generation.request.return_text_in_logprobs:
        return [[logprob, token_id, generation.text.piece(token_id)] for logprob, token_id in pairs]
    return [[logprob, token_id, None] for logprob, token_id in pairs]


def error_body(error: RequestRefusedError) -> dict[str, Any]:
    """The body of a 400: a string from SGLang's JSON gate, an object from everything behind it."""
    return {"error": error.message if error.contract else {"message": error.message}}


def stream_error(error: RequestRefusedError) -> dict[str, Any]:
    """SGLang answers a refused streaming request with HTTP 200 and this one event."""
    return {"error": {"message": error.message, "type": "invalid_request_error", "code": 400, "retryable": False}}


def http_error(status: int, message: str) -> dict[str, Any]:
    """The body SGLang gives to other statuses."""
    return {"object": "error", "message": message, "type": str(status), "param": None, "code": status}

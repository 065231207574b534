"""The body of `POST /generate`: what SGLang 0.5.23 accepts, and its words when it does not.

Promise: a body is either a well-typed `GenerateCall` or a `RefusalError` with SGLang's status and error shape;
nothing is repaired. Unknown top-level fields are ignored, unknown `sampling_params` refused. Concurrency:
pure functions.
"""

import uuid
from dataclasses import dataclass
from typing import Any

import orjson

from tests.fake_sglang.wire import RefusalError

_INT, _FLOAT, _BOOL, _STR = "i64", "f64", "a boolean", "a string"
# Order matters: SGLang lists the keys in this order in its error text.
SAMPLING_FIELDS: dict[str, str | None] = {
    "max_new_tokens": _INT,
    "stop": None,
    "stop_token_ids": None,
    "stop_regex": None,
    "temperature": _FLOAT,
    "top_p": _FLOAT,
    "top_k": _INT,
    "min_p": _FLOAT,
    "frequency_penalty": _FLOAT,
    "presence_penalty": _FLOAT,
    "repetition_penalty": _FLOAT,
    "min_new_tokens": _INT,
    "n": _INT,
    "json_schema": _STR,
    "regex": _STR,
    "ebnf": _STR,
    "structural_tag": _STR,
    "ignore_eos": _BOOL,
    "skip_special_tokens": _BOOL,
    "spaces_between_special_tokens": _BOOL,
    "no_stop_trim": _BOOL,
    "stream_interval": _INT,
    "logit_bias": None,
    "sampling_seed": _INT,
    "custom_params": None,
    "beam_width": _INT,
    "watermark": None,
    "choice": None,
}
BODY_FIELDS: dict[str, str] = {
    "stream": _BOOL,
    "return_logprob": _BOOL,
    "return_text_in_logprobs": _BOOL,
    "return_prompt_token_ids": _BOOL,
    "logprob_start_len": _INT,
    "top_logprobs_num": _INT,
    "rid": _STR,
    "return_routed_experts": _BOOL,
    "routed_experts_start_len": _INT,
    "text": _STR,
}


@dataclass(slots=True)
class GenerateCall:
    """A well-typed request. `input_ids` or `text` is set; `body` is all that came."""

    body: dict[str, Any]
    rid: str
    input_ids: list[int] | None
    text: str | None
    sampling_params: dict[str, Any]
    stream: bool
    return_logprob: bool
    logprob_start_len: int
    top_logprobs_num: int
    return_text_in_logprobs: bool
    return_prompt_token_ids: bool

    @property
    def max_new_tokens(self) -> int | None:
        """SGLang's default is 128; an explicit null means no limit but the context."""
        budget: int | None = self.sampling_params.get("max_new_tokens", 128)
        return budget

    @property
    def stop_token_ids(self) -> list[int]:
        """The request's own stop ids."""
        return self.sampling_params.get("stop_token_ids") or []

    @property
    def stop_strings(self) -> list[str]:
        """The request's stop strings."""
        stop = self.sampling_params.get("stop")
        return [stop] if isinstance(stop, str) else list(stop or [])

    def param(self, name: str, default: Any) -> Any:
        """A sampling parameter; null means its default."""
        value = self.sampling_params.get(name)
        return default if value is None else value


def parse_json(content_type: str, raw: bytes) -> Any:
    """The JSON of a request, or the 400 that FastAPI's validation gives in SGLang."""
    if content_type.split(";")[0].strip().lower() != "application/json":
        raise RefusalError.validation("1 validation error:\n  content-type: only 'application/json' is allowed")
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RefusalError.validation(
            f"1 validation error:\n  {{'type': 'json_invalid', 'msg': '{error}'}}"
        ) from None


def parse_call(body: Any) -> GenerateCall:
    """Check types as SGLang's contract gate does (>= 0.5.22: the error is a plain string)."""
    if not isinstance(body, dict):
        raise RefusalError.validation("1 validation error:\n  Input should be a valid dictionary")
    params = body.get("sampling_params")
    _refuse_batches(body, params)
    for name, expected in BODY_FIELDS.items():
        _check(body.get(name), expected)
    _check_sampling_params({} if params is None else params)
    ids = body.get("input_ids")
    if ids is not None:
        _check_sequence(ids)
        for token_id in ids:
            _check(token_id, _INT, optional=False)
    return GenerateCall(
        body=body,
        rid=body.get("rid") or uuid.uuid4().hex,
        input_ids=ids,
        text=body.get("text"),
        sampling_params=params or {},
        stream=bool(body.get("stream")),
        return_logprob=bool(body.get("return_logprob")),
        logprob_start_len=-1 if body.get("logprob_start_len") is None else body["logprob_start_len"],
        top_logprobs_num=body.get("top_logprobs_num") or 0,
        return_text_in_logprobs=bool(body.get("return_text_in_logprobs")),
        return_prompt_token_ids=bool(body.get("return_prompt_token_ids")),
    )


def _refuse_batches(body: dict[str, Any], params: Any) -> None:
    ids = body.get("input_ids")
    batched = isinstance(ids, list) and bool(ids) and isinstance(ids[0], list)
    if batched or isinstance(body.get("text"), list) or isinstance(params, list):
        raise RefusalError.value("fake_sglang does not serve batches (SGLang does); send one request per prompt")
    if isinstance(params, dict) and params.get("n") not in (None, 1):
        raise RefusalError.value(f"fake_sglang does not serve n={params['n']} (SGLang does); send one per sample")
    if body.get("input_embeds") is not None:
        raise RefusalError.value("fake_sglang does not serve input_embeds (SGLang does); send input_ids")


def _check_sampling_params(params: Any) -> None:
    if not isinstance(params, dict):
        raise _invalid_type(params, "a value or an array of values for SamplingParamsOrList")
    for name, value in params.items():
        if name not in SAMPLING_FIELDS:
            listed = ", ".join(f"`{field}`" for field in SAMPLING_FIELDS)
            raise RefusalError.contract(f"unknown field `{name}`, expected one of {listed}")
        _check(value, SAMPLING_FIELDS[name])
    stop = params.get("stop")
    if isinstance(stop, list):
        for one in stop:
            _check(one, _STR, optional=False)
    elif stop is not None and not isinstance(stop, str):
        raise _invalid_type(stop, "a value or an array of values for StringOrList")
    if params.get("stop_token_ids") is not None:
        _check_sequence(params["stop_token_ids"])
        for token_id in params["stop_token_ids"]:
            _check(token_id, _INT, optional=False)


def _check_sequence(value: Any) -> None:
    if not isinstance(value, list):
        raise _invalid_type(value, "a sequence")


def _check(value: Any, expected: str | None, *, optional: bool = True) -> None:
    if expected is None or (value is None and optional):
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        _INT: number and isinstance(value, int),
        _FLOAT: number,
        _BOOL: isinstance(value, bool),
        _STR: isinstance(value, str),
    }[expected]
    if not fits:
        raise _invalid_type(value, expected)


def _invalid_type(value: Any, expected: str) -> RefusalError:
    return RefusalError.contract(f"invalid type: {_shown(value)}, expected {expected}")


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    if isinstance(value, str):
        return f'string "{value}"'
    return "sequence" if isinstance(value, list) else "map"

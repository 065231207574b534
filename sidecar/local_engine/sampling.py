"""`sampling_params` of SGLang's /generate, checked, and their translation to llama.cpp's options.

Promise: a parameter is honoured or refused, never dropped. Names, defaults, bounds and wording of refusals are
those of SGLang 0.5.23. Concurrency: pure functions and frozen values.

Stated by `/server_info` too: logprobs are those of the model's own distribution, before temperature, penalties
and `min_new_tokens`. At temperature 1 (and greedy, where SGLang reports the same) nothing differs.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.local_engine.errors import RequestRefusedError

_GREEDY_BELOW = 1e-6  # SGLang 0.5.23 treats a lower temperature as greedy

# Accepted by SGLang's gate. Those only llama.cpp cannot do are refused when they are set.
_UNSUPPORTED = (
    "stop_regex",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "logit_bias",
    "custom_params",
    "beam_width",
    "watermark",
    "choice",
)


@dataclass(frozen=True)
class SamplingParams:
    """What one request asks of the sampler; defaults are SGLang's."""

    max_new_tokens: int | None = 128  # None: until the context is full
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1  # -1: all
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True  # no effect with a fast tokenizer, as in SGLang
    no_stop_trim: bool = False
    stream_interval: int = 1
    sampling_seed: int | None = None

    @property
    def penalised(self) -> bool:
        """Whether the next token's distribution depends on which tokens were sampled before."""
        neutral = (self.frequency_penalty, self.presence_penalty, self.repetition_penalty) == (0.0, 0.0, 1.0)
        return not neutral


def parse_sampling_params(raw: object) -> SamplingParams:
    """Check the request's `sampling_params` (a JSON object, or absent); raise RequestRefusedError."""
    if raw is None:
        return SamplingParams()
    if not isinstance(raw, dict):
        raise RequestRefusedError(f"invalid type: {_json_kind(raw)}, expected an object", contract=True)
    for name in raw:
        if name not in _READERS and name not in _UNSUPPORTED:
            expected = ", ".join(f"`{known}`" for known in (*_READERS, *_UNSUPPORTED))
            raise RequestRefusedError(f"unknown field `{name}`, expected one of {expected}", contract=True)
    for name in _UNSUPPORTED:
        if raw.get(name) is not None:
            raise RequestRefusedError(
                f"sampling_params.{name} is not supported by the embedded engine (llama.cpp without grammars); "
                "leave it out, or use a real SGLang"
            )
    given = {name: _READERS[name](name, value) for name, value in raw.items() if name in _READERS}
    # null means the default (SGLang), except where it has a meaning of its own.
    params = SamplingParams(**{k: v for k, v in given.items() if v is not None or k == "max_new_tokens"})
    _check_bounds(params)
    return params


def llama_options(
    params: SamplingParams, *, n_predict: int, seed: int | None, banned_ids: Collection[int], penalty_window: int
) -> dict[str, Any]:
    """Return the sampling part of a body for llama.cpp's `/completion`.

    `n_predict` is this request's limit in tokens, `seed` None lets llama.cpp draw one, `banned_ids` cannot be
    sampled (SGLang's `min_new_tokens`), and penalties look back over `penalty_window` tokens.
    """
    options: dict[str, Any] = {
        "n_predict": n_predict,
        # SGLang scales by temperature first and truncates then; llama.cpp's default is the other way round.
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "temperature": 0.0 if params.temperature < _GREEDY_BELOW else params.temperature,
        "top_k": max(params.top_k, 0),
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_last_n": penalty_window,
        "repeat_penalty": params.repetition_penalty,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
    }
    if seed is not None:
        options["seed"] = seed
    if banned_ids:
        options["logit_bias"] = [[token_id, False] for token_id in sorted(banned_ids)]
    return options


def _check_bounds(params: SamplingParams) -> None:
    limit = params.max_new_tokens
    rules: list[tuple[bool, str]] = [
        (params.temperature >= 0, f"temperature must be a non-negative finite number, got {params.temperature}."),
        (0 < params.top_p <= 1, f"top_p must be in (0, 1], got {params.top_p}."),
        (0 <= params.min_p <= 1, f"min_p must be in [0, 1], got {params.min_p}."),
        (params.top_k == -1 or params.top_k >= 1, f"top_k must be -1 (disable) or at least 1, got {params.top_k}."),
        (
            abs(params.frequency_penalty) <= 2,
            f"frequency_penalty must be in [-2, 2], got {params.frequency_penalty}.",
        ),
        (abs(params.presence_penalty) <= 2, f"presence_penalty must be in [-2, 2], got {params.presence_penalty}."),
        (
            0 < params.repetition_penalty <= 2,
            f"repetition_penalty must be in (0, 2] (1.0 = no penalty), got {params.repetition_penalty}.",
        ),
        (limit is None or limit >= 0, f"max_new_tokens must be at least 0, got {limit}."),
        (
            params.min_new_tokens >= 0 and (limit is None or params.min_new_tokens <= limit),
            f"min_new_tokens must be in [0, max_new_tokens({limit})], got {params.min_new_tokens}.",
        ),
        (params.n == 1, f"n must be 1 for the embedded engine, got {params.n}; send n requests."),
        (params.stream_interval >= 1, f"stream_interval must be at least 1, got {params.stream_interval}."),
        ("" not in params.stop, "stop must not hold an empty string; leave it out."),
    ]
    for holds, message in rules:
        if not holds:
            raise RequestRefusedError(message)


def _integer(name: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestRefusedError(
            f"invalid type: {_json_kind(value)}, expected an integer at `{name}`", contract=True
        )
    return value


def _number(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestRefusedError(
            f"invalid type: {_json_kind(value)}, expected a number at `{name}`", contract=True
        )
    return float(value)


def _boolean(name: str, value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise RequestRefusedError(f"invalid type: {_json_kind(value)}, expected a boolean at `{name}`", contract=True)


def _strings(name: str, value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise RequestRefusedError(
            f"invalid type: {_json_kind(value)}, expected a string or a list of strings at `{name}`", contract=True
        )
    return tuple(items)


def _integers(name: str, value: object) -> frozenset[int] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise RequestRefusedError(f"invalid type: {_json_kind(value)}, expected a list at `{name}`", contract=True)
    return frozenset(number for number in (_integer(name, item) for item in value) if number is not None)


def _json_kind(value: object) -> str:
    """Name a JSON value the way SGLang's gate does."""
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    if isinstance(value, str):
        return "string"
    return "null" if value is None else "map" if isinstance(value, dict) else "sequence"


_READERS: Mapping[str, Callable[[str, object], Any]] = {
    "max_new_tokens": _integer,
    "stop": _strings,
    "stop_token_ids": _integers,
    "temperature": _number,
    "top_p": _number,
    "top_k": _integer,
    "min_p": _number,
    "frequency_penalty": _number,
    "presence_penalty": _number,
    "repetition_penalty": _number,
    "min_new_tokens": _integer,
    "n": _integer,
    "ignore_eos": _boolean,
    "skip_special_tokens": _boolean,
    "spaces_between_special_tokens": _boolean,
    "no_stop_trim": _boolean,
    "stream_interval": _integer,
    "sampling_seed": _integer,
}

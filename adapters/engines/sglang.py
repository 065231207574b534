"""SGLang's `/generate`: the one interface that is stable from 0.5.9 to 0.5.23. Pure; the transport is elsewhere.

`generate_body` writes a request around ids that are JSON already; `ReplyReader` reads the stream of one call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

from adapters.engines.base import (
    ContractError,
    EngineFailure,
    EngineInfo,
    EngineRefusal,
    EngineRequest,
    Finish,
    ReportedVersions,
)
from adapters.engines.routed_experts import RoutedReply, routed_reply

SESSION_HEADER = "X-SMG-Routing-Key"
_LARGEST_ID = 2**31 - 1


def generate_body(request: EngineRequest) -> bytes:
    """JSON body of `POST /generate`. From SGLang 0.5.22 on, unknown sampling keys are 400."""
    parameters = {
        **request.sampling,
        "max_new_tokens": request.max_new_tokens,
        "stop_token_ids": list(request.stop_token_ids),
        # the delimiters of calls and reasoning are special tokens in many families, and stop ids are ids too
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
        "stream_interval": request.stream_interval,
    }
    fields = {"sampling_params": parameters, "rid": request.rid, "return_logprob": True, "stream": True}
    if request.routed_experts_start is not None:
        fields |= {"return_routed_experts": True, "routed_experts_start_len": request.routed_experts_start}
    rest = orjson.dumps(fields)
    parts = [b'{"input_ids":[']
    for number, run in enumerate(request.input_ids_json):  # half a megabyte at 80K tokens: put together once
        parts += (b",", run) if number else (run,)
    return b"".join([*parts, b"],", rest[1:]])


class ReplyReader:
    """Ids and logprobs of one call as its chunks come.

    SGLang streams are cumulative by default (each chunk repeats everything) and incremental with
    `--incremental-streaming-output`; `completion_tokens` is cumulative in both and tells them apart. A wrong count
    must not pass for the other kind, or ids would be doubled: a stream stays of the kind that it was, and the
    count has to agree with `output_token_logprobs_length` (since 0.5.10).
    """

    def __init__(self) -> None:
        self.output_ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish: Finish | None = None
        self.versions = ReportedVersions()
        self.weight_version: str | None = None
        """The version that the newest chunk named, finished or not."""
        self.routed: RoutedReply | None = None
        """Which experts processed the tokens, not decoded; comes with the last chunk, if it was asked for."""
        self._cumulative: bool | None = None

    def read(self, chunk: Mapping[str, Any]) -> None:
        """Take one SSE payload.

        Raises `EngineRefusal` or `EngineFailure` for errors inside the stream, when the payload's ids are taken;
        `ContractError` if ids and logprobs do not agree."""
        if "error" in chunk:
            raise_error(chunk["error"])
        meta = chunk.get("meta_info")
        if not isinstance(meta, dict):
            raise ContractError("the engine's chunk has no meta_info")
        reason = meta.get("finish_reason")
        self._take(chunk, meta, aborted=isinstance(reason, dict) and reason.get("type") == "abort")
        version = meta.get("weight_version")
        if isinstance(version, str):
            self.weight_version = version
        if reason is not None:
            self.versions = _versions(meta, len(self.output_ids))
            self.routed = routed_reply(meta, len(self.output_ids))
            self.finish = _finish(reason)

    def _take(self, chunk: Mapping[str, Any], meta: Mapping[str, Any], *, aborted: bool) -> None:
        ids = chunk.get("output_ids") or []
        entries = meta.get("output_token_logprobs") or []
        if len(ids) != len(entries):
            if aborted:
                return  # what was held is the last consistent prefix
            raise ContractError(f"the engine sent {len(ids)} output_ids and {len(entries)} logprobs")
        total, held = meta.get("completion_tokens"), len(self.output_ids)
        if total is None:
            if aborted:
                return  # an abort from the waiting queue: no ids, sparse meta_info
            raise ContractError("the engine's chunk has no completion_tokens")
        if not aborted and meta.get("output_token_logprobs_length", total) != total:
            raise ContractError(
                f"the engine counts {total} completion_tokens, but output_token_logprobs_length is "
                f"{meta['output_token_logprobs_length']}"
            )
        if self._cumulative is not False and total == len(ids) and total >= held:
            cumulative = True
        elif self._cumulative is not True and total == held + len(ids):
            cumulative = False
        elif aborted:
            return  # an aborted incremental stream may repeat its last id: nothing is doubled
        else:
            raise ContractError(
                f"the engine counts {total} completion_tokens; {held} ids came before, {len(ids)} in this chunk"
            )
        if held and ids:
            self._cumulative = cumulative
        fresh = slice(held if cumulative else 0, None)  # what is held already is not taken twice
        self.logprobs += _checked_logprobs(ids[fresh], entries[fresh], held)
        self.output_ids += ids[fresh]


def _checked_logprobs(ids: list[int], entries: list[Any], first: int) -> list[float]:
    """Logprobs of new ids; `first` is the position of `ids[0]` in the reply."""
    if len(ids) == 1:  # as in most events of an incremental stream
        [index], [(logprob, named, *_)] = ids, entries
        certain = type(index) is int and type(logprob) is float and -math.inf < logprob <= 0
        if certain and 0 <= index <= _LARGEST_ID and named == index:
            return [logprob]
    logprobs = [entry[0] for entry in entries]
    if (
        [entry[1] for entry in entries] == ids
        and set(map(type, ids)) <= {int}
        and min(ids, default=0) >= 0
        and max(ids, default=0) <= _LARGEST_ID
        and set(map(type, logprobs)) <= {float, int}
        and math.isfinite(sum(logprobs))
        and max(logprobs, default=0) <= 0
    ):
        return list(map(float, logprobs))
    return _named_logprobs(ids, entries, first)


def _named_logprobs(ids: list[int], entries: list[Any], first: int) -> list[float]:
    """The same element by element, so that the error names the one that is wrong."""
    logprobs = []
    for position, (index, entry) in enumerate(zip(ids, entries, strict=True), first):
        if type(index) is not int or not 0 <= index <= _LARGEST_ID:
            raise ContractError(f"output_ids[{position}] is {index!r}; a token id is an int32 of at least 0")
        if entry[1] != index:
            raise ContractError(f"output_ids[{position}] is {index}, but its logprob is of token {entry[1]}")
        logprob = entry[0]
        if not isinstance(logprob, int | float) or not math.isfinite(logprob) or logprob > 0:
            raise ContractError(f"the logprob of output_ids[{position}] is {logprob!r}; finite and <= 0 is right")
        logprobs.append(float(logprob))
    return logprobs


def _finish(reason: Any) -> Finish:
    if not isinstance(reason, dict) or reason.get("type") not in ("stop", "length", "abort"):
        raise ContractError(f"the engine's finish_reason is {reason!r}")
    if reason["type"] == "abort":
        if reason.get("status_code") is not None or reason.get("err_type") is not None:
            raise_error(
                {"code": reason.get("status_code"), "message": reason.get("message") or reason.get("err_type")}
            )
        return Finish("abort", message=str(reason.get("message") or ""))
    return Finish(reason["type"], matched=reason.get("matched"))


def _versions(meta: Mapping[str, Any], count: int) -> ReportedVersions:
    single = meta.get("weight_version")
    spans = meta.get("weight_versions")
    if not spans:
        return ReportedVersions(single=single if isinstance(single, str) else None)
    read = tuple(
        (int(s["start"]), int(s["end"]), str(s["version"])) for s in spans if s["start"] < min(s["end"], count)
    )
    covered = [0, *(end for _, end, _ in read)]
    if [start for start, _, _ in read] != covered[:-1] or covered[-1] < count:
        raise ContractError(f"the engine's weight_versions {spans!r} do not cover {count} tokens")
    return ReportedVersions(spans=read, single=single if isinstance(single, str) else None)


def raise_error(error: Any) -> None:
    """Raise what an SGLang error says: a string, `{message, code}`, or an HTTP-like status in `code`."""
    if not isinstance(error, dict):
        raise EngineRefusal(400, str(error))
    message = str(error.get("message") or "the engine gives no reason")
    status = error.get("code")
    if isinstance(status, int) and 400 <= status < 500:
        raise EngineRefusal(status, message)
    raise EngineFailure(status if isinstance(status, int) else 500, message)


def raise_http_error(status: int, body: bytes) -> None:
    """Raise for an HTTP status that is not 200. SGLang's bodies: `{"error": {...}}`, `{"error": "..."}`,
    `{"object": "error", "message"}`, `{"detail"}`."""
    message = body[:300].decode(errors="replace").strip()
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = None
    if isinstance(parsed, dict):
        error = parsed.get("error", parsed)
        if isinstance(error, dict):
            error = error.get("message") or error.get("detail") or message
        message = str(error)
    if 400 <= status < 500:
        raise EngineRefusal(status, message)
    raise EngineFailure(status, message)


def engine_info(
    model_info: Mapping[str, Any], server_info: Mapping[str, Any], models: Mapping[str, Any]
) -> EngineInfo:
    """One picture from `/model_info`, `/server_info` and `/v1/models`; each may be empty."""
    listed = models.get("data") or [{}]
    incremental = server_info.get("incremental_streaming_output", server_info.get("stream_output"))
    return EngineInfo(
        model_id=str(listed[0].get("id") or model_info.get("model_path") or "model"),
        tokenizer_path=model_info.get("tokenizer_path"),
        context_length=listed[0].get("max_model_len"),
        weight_version=model_info.get("weight_version") or server_info.get("weight_version"),
        incremental=incremental if isinstance(incremental, bool) else None,
        version=server_info.get("version"),
        tool_call_parser=model_info.get("tool_call_parser"),
        reasoning_parser=model_info.get("reasoning_parser"),
        returns_routed_experts=server_info.get("enable_return_routed_experts"),
    )

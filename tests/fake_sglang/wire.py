"""The shapes on the wire: error bodies, SSE framing, `meta_info` and reply chunks of SGLang 0.5.23.

Promise: bytes and JSON exactly as that server writes them (measured, or read in its source); faults that distort
a chunk are applied here and nowhere else. Concurrency: pure functions over a job's state.
"""

import json
import math
import time
from typing import TYPE_CHECKING, Any

import orjson

from tests.fake_sglang import experts, faults
from tests.fake_sglang.plan import pseudo_logprob

if TYPE_CHECKING:
    from tests.fake_sglang.job import Job, Mark

DONE = b"data: [DONE]\n\n"


class RefusalError(Exception):
    """A request that is not served; carries the status and the body SGLang gives."""

    def __init__(self, status: int, body: dict[str, Any], message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.message = message

    @classmethod
    def value(cls, message: str) -> "RefusalError":
        """A `ValueError` inside SGLang."""
        return cls(400, {"error": {"message": message}}, message)

    @classmethod
    def contract(cls, message: str) -> "RefusalError":
        """The JSON contract gate (>= 0.5.22): `error` is a string here."""
        return cls(400, {"error": message}, message)

    @classmethod
    def validation(cls, message: str) -> "RefusalError":
        """A body or query that FastAPI's validation refuses: 400, never 422."""
        return cls(400, error_object(400, message, "Bad Request"), message)

    @classmethod
    def http(cls, status: int, message: str) -> "RefusalError":
        """An `HTTPException` inside SGLang."""
        return cls(status, error_object(status, message, str(status)), message)


def error_object(status: int, message: str, kind: str) -> dict[str, Any]:
    """SGLang's flat error object."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def stream_error(message: str, *, code: int = 400, kind: str = "invalid_request_error") -> dict[str, Any]:
    """An error event in a stream that already answered 200."""
    return {"error": {"message": message, "type": kind, "code": code, "retryable": False}}


def dump(payload: Any) -> bytes:
    """JSON bytes. NaN, which SGLang's encoder cannot write, is written as Python's bare `NaN` when scripted."""
    if _has_nan(payload):
        return json.dumps(payload, separators=(",", ":")).encode()
    return orjson.dumps(payload)


def sse(payload: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + dump(payload) + b"\n\n"


def intermediate_chunk(job: "Job", mark: "Mark", since: int) -> dict[str, Any]:
    """A chunk before the end: all ids up to the mark, or in incremental mode those from `since` on."""
    start, upto, text_length = since if job.incremental else 0, mark.count, mark.text_length
    meta = _meta_info(job, upto, start, finish_reason=None) | {"weight_version": mark.version}
    if since == 0:
        meta["response_sent_to_client_ts"] = time.time()
    text = None if job.text is None else job.text.visible[:text_length]
    if text is not None and job.incremental:
        text = text[job.text_sent :]
        job.text_sent = text_length
    return _assemble(job, text, upto, start, meta, final=False)


def final_chunk(job: "Job", since: int) -> dict[str, Any]:
    """The last chunk of a stream, or the whole reply without streaming (`since` 0)."""
    assert job.end is not None, "a final chunk is asked of a job that has not ended"
    if job.end.kind == "queue_abort":
        return _queue_abort(job)
    upto, start = len(job.ids), since if job.incremental else 0
    meta = _meta_info(job, upto, start, finish_reason=job.end.finish_reason)
    if job.state.options.version_spans:
        meta["weight_versions"] = job.spans()
        meta["weight_version"] = meta["weight_versions"][-1]["version"]
    _routed_experts(job, meta)
    meta["e2e_latency"] = time.monotonic() - job.started
    if since == 0:
        meta["response_sent_to_client_ts"] = time.time()
    text = job.final_text()
    if text is not None and job.incremental:
        text = text[job.text_sent :]
    return _assemble(job, text, upto, start, meta, final=True)


def _routed_experts(job: "Job", meta: dict[str, Any]) -> None:
    """Collected when a request ends, also by an abort; without the server's flag the field is silently absent."""
    shape, body = job.state.options.experts, job.call.body
    if shape is None or not body.get("return_routed_experts"):
        return
    ids = [*job.record.input_ids, *job.ids]
    start = body.get("routed_experts_start_len") or 0
    every = experts.routed_experts(ids, shape)
    field = experts.reply_field(every[start:], every, job.plan.faults)
    if field is not None:
        meta["routed_experts"] = field


def _queue_abort(job: "Job") -> dict[str, Any]:
    """Aborted in the waiting queue: sparse `meta_info`.

    A retracted request waits there with the ids it has. In incremental mode SGLang then repeats the last id
    alone (a duplicate for the client) beside the logprobs of all of them.
    """
    assert job.end is not None
    meta: dict[str, Any] = {
        "id": job.record.rid,
        "finish_reason": job.end.finish_reason,
        "weight_version": job.state.named_version,
        "e2e_latency": time.monotonic() - job.started,
    }
    if job.state.options.version_spans:
        meta["weight_versions"] = job.spans()
        meta["weight_version"] = meta["weight_versions"][-1]["version"]
    if job.call.return_logprob:
        meta |= _logprobs(job, len(job.ids), 0)
    meta["completion_tokens"] = len(job.ids)
    ids = job.ids[-1:] if job.incremental else list(job.ids)
    out: dict[str, Any] = {
        "text": "" if job.text is None else job.text.visible,
        "output_ids": ids,
        "meta_info": meta,
    }
    if job.call.return_prompt_token_ids:
        out["prompt_token_ids"] = job.record.input_ids
    return out


def _meta_info(job: "Job", upto: int, start: int, finish_reason: dict[str, Any] | None) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": job.record.rid,
        "finish_reason": finish_reason,
        "prompt_tokens": len(job.record.input_ids),
        "weight_version": job.state.named_version,
        **({"num_retractions": job.num_retractions} if job.state.options.since(12) else {}),
    }
    if job.call.return_logprob:
        meta |= _logprobs(job, upto, start)
    meta |= {"reasoning_tokens": 0, "completion_tokens": upto, "cached_tokens": job.cached_tokens}
    meta["cached_tokens_details"] = {"device": job.cached_tokens, "host": 0} if job.cached_tokens else None
    meta["dp_rank"] = None
    return meta


def _logprobs(job: "Job", upto: int, start: int) -> dict[str, Any]:
    call, prompt = job.call, job.record.input_ids

    def entry(logprob: float | None, token_id: int) -> list[Any]:
        with_text = call.return_text_in_logprobs and job.vocabulary.tokenizer is not None
        text = job.vocabulary.decode([token_id], skip_special_tokens=False) if with_text else None
        return [logprob, token_id, text]

    begin = call.logprob_start_len if call.logprob_start_len >= 0 else len(prompt)
    read = range(begin, len(prompt))
    # Made once per id: a cumulative stream repeats them in every chunk.
    job.entries += [entry(job.logprobs[i], job.ids[i]) for i in range(len(job.entries), upto)]
    out: dict[str, Any] = {
        # The first entry has no logprob: nothing precedes it in the range.
        "input_token_logprobs": [
            entry(pseudo_logprob(i, prompt[i]) if i > begin else None, prompt[i]) for i in read
        ],
        "output_token_logprobs": job.entries[start:upto],
    }
    if job.state.options.since(10):
        out["output_token_logprobs_length"] = upto
    if call.top_logprobs_num > 0:
        out["output_top_logprobs"] = [
            [
                entry((job.logprobs[i] or 0.0) - rank / 2, (job.ids[i] + rank) % job.vocabulary.size)
                for rank in ranks
            ]
            for i in range(start, upto)
            for ranks in [range(call.top_logprobs_num)]
        ]
    return out


def _assemble(
    job: "Job", text: str | None, upto: int, start: int, meta: dict[str, Any], *, final: bool
) -> dict[str, Any]:
    # A server without a tokenizer sends no text at all.
    out: dict[str, Any] = {} if text is None else {"text": text}
    out |= {"output_ids": job.ids[start:upto], "meta_info": meta}
    if job.call.return_prompt_token_ids:
        out["prompt_token_ids"] = job.record.input_ids
    for fault in job.plan.faults:
        _distort(meta, fault, start, final=final)
    return out


def _distort(meta: dict[str, Any], fault: faults.Fault, start: int, *, final: bool) -> None:
    entries = meta.get("output_token_logprobs", [])
    if isinstance(fault, faults.LogprobCount) and final:
        if fault.delta < 0:
            del entries[fault.delta :]
        else:
            entries.extend(entries[-1:] * fault.delta)
    elif isinstance(fault, faults.BadLogprob) and 0 <= fault.index - start < len(entries):
        _, *rest = entries[fault.index - start]
        entries[fault.index - start] = [fault.value, *rest]
    elif isinstance(fault, faults.CompletionTokens) and final:
        meta["completion_tokens"] += fault.delta


def _has_nan(payload: Any) -> bool:
    entries = payload.get("meta_info", {}).get("output_token_logprobs", []) if isinstance(payload, dict) else []
    return any(isinstance(entry[0], float) and math.isnan(entry[0]) for entry in entries)

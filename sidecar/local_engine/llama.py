"""llama.cpp inside this process, driven through the loopback server that `xllamacpp` starts.

Promise: `sample` yields every sampled id with the logprob that llama.cpp computed for it, in order, or raises
LlamaError; closing the iterator cancels the generation within about a token (within a batch of
`_BATCH` tokens while a prompt is being read). Nothing is ever made up for a token whose logprob did not come.

Concurrency: start, stop and sample belong to one event loop. llama.cpp works on threads of its own; loading
holds the interpreter's lock for the time it takes (0.2 to 2.5 s measured), all else does not block.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from sidecar.local_engine.errors import LlamaError

_PROMPT_CACHE_MIB = 512  # states of prompts that lost their slot; 23 KB per token
# Tokens of a prompt read in one go (about 1 s): others wait that long for their next token, an abort for its
# effect. llama.cpp's own 2048 gains nothing on CPUs.
_BATCH = 256
_LOG_ERRORS_ONLY = 1


@dataclass(frozen=True)
class LlamaChunk:
    """One step of a generation: ids with their logprobs, the prompt's cached tokens, or the end."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    cached_tokens: int | None = None
    ended: str | None = None  # "eos" or "limit" on the last chunk


class LlamaServer:
    """Owns the xllamacpp server and the one client that may talk to it."""

    def __init__(self, weights: Path, *, context_length: int, slots: int, threads: int) -> None:
        self._weights = weights
        self._context_length = context_length
        self._slots = slots
        self._threads = threads
        self._server: Any = None
        self._client: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Load the model; raises LlamaError if that fails."""
        key = secrets.token_urlsafe(32)  # the loopback port is open to every user of the machine
        self._server = await asyncio.to_thread(self._load, key)
        self._client = aiohttp.ClientSession(
            base_url=self._server.listening_address,
            headers={"Authorization": f"Bearer {key}"},
            # Its server closes idle connections after a few seconds, and a reused one may die under a request.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            json_serialize=lambda body: orjson.dumps(body).decode(),
        )

    async def stop(self) -> None:
        """Close the client and free the model; a second call does nothing."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        holder, self._server = [self._server], None
        await asyncio.to_thread(holder.clear)  # the destructor joins llama.cpp's threads

    async def sample(self, input_ids: Sequence[int], options: dict[str, Any]) -> AsyncGenerator[LlamaChunk]:
        """Continue `input_ids` under `options` (see `sampling.llama_options`), a chunk per sampled token."""
        if self._client is None:
            raise LlamaError("the embedded engine is not running")
        body = {
            **options,
            "prompt": list(input_ids),
            "n_probs": 1,  # brings the sampled token's own logprob, whatever its rank
            "stream": True,
            "return_progress": True,  # brings the count of cached prompt tokens before the first token
            "cache_prompt": True,
        }
        try:
            async with self._client.post("/completion", json=body) as response:
                if response.status != 200:
                    raise LlamaError(f"llama.cpp answered {response.status}: {await response.text()}")
                sampled = 0
                async for event in _events(response):
                    chunk = _read_event(event, sampled)
                    sampled += len(chunk.ids)
                    yield chunk
        except aiohttp.ClientError as error:
            raise LlamaError(f"the connection to llama.cpp broke: {error!r}") from error

    def _load(self, key: str) -> Any:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(self._weights)
        params.n_ctx = self._context_length * self._slots  # llama.cpp divides it among the slots
        params.n_parallel = self._slots
        params.cpuparams.n_threads = self._threads
        params.cpuparams_batch.n_threads = self._threads
        params.n_batch = params.n_ubatch = _BATCH
        params.n_threads_http = 2 * self._slots + 4  # one per stream; cancelled ones linger for a moment
        params.cache_ram_mib = _PROMPT_CACHE_MIB
        params.api_keys = [key]
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.ui = False
        params.endpoint_slots = False
        params.fit_params = False
        params.verbosity = _LOG_ERRORS_ONLY
        try:
            return xllamacpp.Server(params)
        except RuntimeError as error:
            raise LlamaError(f"llama.cpp could not load {self._weights}: {error}") from error


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Split the body into its events; lines are not used, since a long one overflows the line reader."""
    rest = b""
    async for piece in response.content.iter_any():
        *whole, rest = (rest + piece).split(b"\n\n")
        for event in whole:
            kind, _, data = event.partition(b": ")
            if kind == b"data" and data != b"[DONE]":
                yield orjson.loads(data)
            elif kind == b"error":
                raise LlamaError(f"llama.cpp: {data.decode(errors='replace')}")


def _read_event(event: dict[str, Any], sampled: int) -> LlamaChunk:
    """Read one event, `sampled` being the number of ids received before it."""
    if "error" in event:
        raise LlamaError(f"llama.cpp: {event['error']}")
    entries = event.get("completion_probabilities", ())
    ids = tuple(entry["id"] for entry in entries)
    # log(p) of a probability that rounded above 1 is a tiny positive number.
    logprobs = tuple(min(float(entry["logprob"]), 0.0) for entry in entries)
    if "prompt_progress" in event:  # sent before the first token, and between batches of a long prompt
        return LlamaChunk(cached_tokens=event["prompt_progress"]["cache"])
    if sampled + len(ids) != event["tokens_predicted"]:
        raise LlamaError(
            f"llama.cpp sampled {event['tokens_predicted']} tokens and reported {sampled + len(ids)}; "
            "this version of xllamacpp keeps tokens back and cannot be used"
        )
    if not event["stop"]:
        return LlamaChunk(ids, logprobs)
    return LlamaChunk(ids, logprobs, event["timings"]["cache_n"], event["stop_type"])

"""The embedded engine: admission, generation, abort, pause and the weight version's label.

Promise: a request ends exactly once, with the ids that were sampled and nothing else; at most `slots` run at a
time, in order of arrival; after a pause nothing is sampled until `resume`. The weights never change: the weight
version is a label, stamped on every token as it is sampled.

Concurrency: everything belongs to the event loop that called `start`. Each request is a task owned here
(`_tasks`), so no HTTP handler's end can leave one half done.
"""

import asyncio
import os
import random
from contextlib import aclosing
from typing import Any, Literal

from sidecar.local_engine.errors import LlamaError, RequestRefusedError
from sidecar.local_engine.generation import GenerateRequest, Generation
from sidecar.local_engine.llama import LlamaServer
from sidecar.local_engine.model_files import ModelFiles
from sidecar.local_engine.reply_text import TokenTable
from sidecar.local_engine.sampling import llama_options

PauseMode = Literal["abort", "retract", "in_place"]
_SEED_MASK = 0x7FFF_FFFF  # llama.cpp reads 0xFFFFFFFF as "draw one"


def default_threads() -> int:
    """Half the processors: a thread more than there are idle cores makes llama.cpp many times slower."""
    return max(1, (os.cpu_count() or 2) // 2)


class LocalEngine:
    """A small language model on CPUs. `start` before use; see `server.build_app` for its HTTP face.

    `context_length` in tokens per request (at most what the model was trained on), `slots` requests at a time,
    `threads` for the arithmetic (they wait for each other in busy loops: never more than there are idle cores,
    or 80 tokens per second become 3), `seed` makes sampling repeatable for the same order of requests (greedy
    decoding needs none). Memory: about 0.3 GB and 23 KB per token of context and slot.
    """

    def __init__(
        self,
        files: ModelFiles,
        context_length: int = 8192,
        slots: int = 4,
        threads: int = 2,
        seed: int | None = None,
    ) -> None:
        if not 0 < context_length <= files.trained_context:
            raise ValueError(
                f"context_length is {context_length}; this model was trained on 1 to {files.trained_context} tokens"
            )
        if slots < 1 or threads < 1:
            raise ValueError(f"slots ({slots}) and threads ({threads}) must be at least 1")
        self.files = files
        self.context_length = context_length
        self.slots = slots
        self.seed = seed
        self.weight_version = "default"  # SGLang's own default
        self.started = False
        self._llama = LlamaServer(files.weights, context_length=context_length, slots=slots, threads=threads)
        self._table: TokenTable | None = None
        # By request id; an ended generation leaves once llama.cpp has freed its slot, milliseconds later.
        self._running: dict[str, Generation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._works: dict[str, asyncio.Task[None]] = {}
        self._free_slots = asyncio.Semaphore(slots)
        self._gate = asyncio.Event()
        self._gate.set()
        self._seeds = random.Random(seed)

    async def start(self) -> None:
        """Load the model; raises LlamaError if llama.cpp cannot."""
        self._table = await asyncio.to_thread(TokenTable, self.files.tokenizer_dir)
        await self._llama.start()
        self.started = True

    async def stop(self) -> None:
        """Abort what runs and free the model."""
        self.started = False
        await self.abort_all()
        await self._llama.stop()

    @property
    def paused(self) -> bool:
        return not self._gate.is_set()

    @property
    def num_running(self) -> int:
        """Requests in flight, waiting ones included. One that has its reply does not count."""
        return sum(generation.finish is None for generation in self._running.values())

    def submit(self, request: GenerateRequest) -> Generation:
        """Start a generation and return it; raises RequestRefusedError for an id that is in flight."""
        if not self.started or self._table is None:
            raise LlamaError("the embedded engine is not running; its lifespan has to be started")
        if request.rid in self._running:
            raise RequestRefusedError(f"Duplicate request ID detected: {request.rid}")
        generation = Generation(request, self._table, self.files.eos_token_id, self.weight_version)
        if generation.finish is None:
            self._running[request.rid] = generation
            self._tasks[request.rid] = asyncio.create_task(self._run(generation, self._draw_seed(request)))
        return generation

    def abort(self, rid: str) -> None:
        """Abort `rid` and, as SGLang's scheduler does, every request whose id begins with it.

        Nothing happens when `rid` itself is not in flight.
        """
        if rid in self._running:
            for other, generation in list(self._running.items()):
                if other.startswith(rid):
                    self.abort_generation(generation)

    def abort_generation(self, generation: Generation) -> None:
        """End one generation now, keeping what was sampled; no effect on one that has ended."""
        if generation.finish is not None:
            return
        generation.abort()
        if (work := self._works.get(generation.request.rid)) is not None:
            work.cancel()

    async def abort_all(self) -> None:
        """Abort every request and return when none is left."""
        tasks = list(self._tasks.values())
        for generation in list(self._running.values()):
            self.abort_generation(generation)
        if tasks:
            await asyncio.wait(tasks)

    async def pause(self, mode: PauseMode) -> None:
        """Close the gate; `abort` ends what runs, the other modes let it go on after `resume`."""
        self._gate.clear()
        if mode == "abort":
            await self.abort_all()
            return
        for rid, generation in self._running.items():
            if generation.admitted and rid in self._works:
                generation.num_retractions += mode == "retract"
                self._works[rid].cancel()

    def resume(self) -> None:
        """Open the gate."""
        self._gate.set()

    async def set_weight_version(self, version: str, abort_all_requests: bool) -> None:
        """Change the label of tokens sampled from now on."""
        if abort_all_requests:
            await self.abort_all()
        self.weight_version = version

    def _draw_seed(self, request: GenerateRequest) -> int | None:
        if request.params.sampling_seed is not None:
            return request.params.sampling_seed
        return self._seeds.getrandbits(31) if self.seed is not None else None

    async def _run(self, generation: Generation, seed: int | None) -> None:
        """See one generation to its end; a hold cancels the work on it, which then starts over at the gate."""
        rid = generation.request.rid
        try:
            while generation.finish is None:
                work = asyncio.create_task(self._work(generation, seed))
                self._works[rid] = work
                await asyncio.wait({work})
                if not work.cancelled() and (error := work.exception()) is not None:
                    generation.fail(f"{type(error).__name__}: {error}")
        finally:
            if (last := self._works.pop(rid, None)) is not None:
                last.cancel()
            generation.abort()  # only if the loop is being torn down: an ended generation stays as it is
            del self._running[rid], self._tasks[rid]

    async def _work(self, generation: Generation, seed: int | None) -> None:
        """Take a slot and sample, request by request to llama.cpp, until a rule of ours ends the generation."""
        async with self._free_slots:
            while generation.finish is None:
                await self._gate.wait()
                generation.admitted = True
                await self._sample(generation, seed)

    async def _sample(self, generation: Generation, seed: int | None) -> None:
        """Continue the generation with one request; raises LlamaError if that brings no token."""
        already = len(generation.output_ids)
        goal, options = self._plan(generation, seed)
        prompt = [*generation.request.input_ids, *generation.output_ids]
        async with aclosing(self._llama.sample(prompt, options)) as chunks:
            async for chunk in chunks:
                if chunk.cached_tokens is not None and not generation.output_ids:
                    generation.cached_tokens = chunk.cached_tokens
                for token_id, logprob in zip(chunk.ids, chunk.logprobs, strict=True):
                    generation.accept(token_id, logprob, self.weight_version)
                if generation.finish is not None and not self._llama_ends_too(generation, goal):
                    return  # leaving closes the stream, which makes llama.cpp stop
                if chunk.ended is not None:
                    break
            else:
                raise LlamaError("llama.cpp's stream ended without its last event")
        if len(generation.output_ids) == already:
            raise LlamaError(f"llama.cpp ended ({chunk.ended}) without a token")
        if chunk.ended == "limit" and len(generation.output_ids) < goal:
            generation.end_full()

    def _plan(self, generation: Generation, seed: int | None) -> tuple[int, dict[str, Any]]:
        """Return the output length at which llama.cpp ends this request, and its options."""
        sampled = len(generation.output_ids)
        params = generation.request.params
        short_of_minimum = params.min_new_tokens - sampled
        asked = short_of_minimum if short_of_minimum > 0 else generation.request.max_new_tokens - sampled
        if params.penalised:
            asked = 1  # SGLang's penalties count output tokens only; llama.cpp's window is fixed per request
        options = llama_options(
            params,
            n_predict=asked,
            # A continuation must not draw the same random numbers again.
            seed=None if seed is None else (seed + sampled) & _SEED_MASK,
            banned_ids=generation.stop_ids if short_of_minimum > 0 else (),
            penalty_window=sampled,
        )
        return sampled + asked, options

    def _llama_ends_too(self, generation: Generation, goal: int) -> bool:
        """Whether llama.cpp stops by itself at this token, so that its last event is worth waiting for."""
        at_eos = generation.output_ids[-1] == self.files.eos_token_id
        return at_eos or len(generation.output_ids) == goal

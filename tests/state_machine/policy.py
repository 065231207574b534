"""What the stand-in samples: every id once in an example, so that an id tells which engine request it came from.

A request that goes on with a reply gets other ids than the one before would have had, as from a real sampler: an id
that was lost, doubled or mixed up shows. One event loop.
"""

import asyncio
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from tests.fake_sglang import FakeSGLang, Meter, RecordedRequest, Reply
from tests.state_machine.calls import STOP_TEXT, Call


@cache
def words(directory: Path) -> tuple[int, ...]:
    """Ids of tokens that are lower-case letters only: any sequence of them decodes to their texts, joined."""
    vocabulary = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab()
    return tuple(
        index for text, index in sorted(vocabulary.items()) if text.isascii() and text.isalpha() and text.islower()
    )


@dataclass(eq=False)
class Metered:
    """An engine request: what its prompt carried of the reply, and what lets it go on."""

    carried: int
    meter: Meter
    queue: asyncio.Event | None


class Policy:
    """The engine's script. `violations` are requests that it should never have got."""

    def __init__(self, engine: FakeSGLang, directory: Path) -> None:
        self._engine = engine
        self._fresh = iter(words(directory))
        self._stop_ids = [engine.vocabulary.encode(character)[0] for character in STOP_TEXT]
        self._calls: dict[int, Call] = {}
        self._allowed: dict[int, int] = {}
        self._metered: dict[int, list[Metered]] = {}
        self.prompts: dict[int, list[int]] = {}
        """The prompt of each call's first engine request, by seed."""
        self.violations: list[str] = []
        self.ends = engine.vocabulary.eos_token_ids[0]
        engine.continue_aborted = False  # goes on from whatever ids a request carries
        engine.script = self._reply

    def add(self, call: Call) -> None:
        """A call that the engine will be asked for."""
        self._calls[call.seed], self._allowed[call.seed], self._metered[call.seed] = call, 0, []

    def allow(self, seed: int, more: int) -> None:
        """Let the engine sample `more` ids of a reply; counted from the reply's beginning, whoever asks."""
        self._allowed[seed] += more
        for one in self._metered[seed]:
            self._raise(one, self._allowed[seed])

    @staticmethod
    def _raise(one: Metered, allowed: int) -> None:
        one.meter.raise_to(allowed - one.carried)
        if one.queue is not None and one.meter.limit > 0:
            one.queue.set()

    def seed_of(self, request: RecordedRequest) -> int:
        """Which call a request is for."""
        return int(request.sampling_params["sampling_seed"])

    def carried(self, request: RecordedRequest) -> list[int]:
        """The part of the reply that the request's prompt ends in."""
        return request.input_ids[len(self.prompts[self.seed_of(request)]) :]

    def requests(self, seed: int) -> list[RecordedRequest]:
        """A call's engine requests, oldest first."""
        return [request for request in self._engine.requests if self.seed_of(request) == seed]

    def text(self, ids: list[int]) -> str:
        """What an agent is shown of a reply's ids."""
        shown = [token for token in ids if token != self.ends]
        return self._engine.vocabulary.decode(shown, skip_special_tokens=False).partition(STOP_TEXT)[0]

    def _reply(self, request: RecordedRequest) -> Reply:
        seed = self.seed_of(request)
        call, prompt = self._calls[seed], self.prompts.setdefault(seed, request.input_ids)
        if request.input_ids[: len(prompt)] != prompt:
            self.violations.append(f"{call.seed}: its prompt was {prompt}, and is {request.input_ids}")
        carried = len(request.input_ids) - len(prompt)
        if carried >= call.shape.complete:
            self.violations.append(f"{call.seed}: a complete reply of {carried} ids is asked to go on")
        known = [self.carried(one) + one.output_ids for one in self.requests(seed) if one is not request]
        ids = request.input_ids[len(prompt) :]
        if ids and not any(before[:carried] == ids for before in known):
            self.violations.append(f"{call.seed}: it is to go on from {ids}, and what was sampled is {known}")
        one = Metered(carried, Meter(0), asyncio.Event() if call.shape.queued else None)
        self._metered[seed].append(one)
        self._raise(one, self._allowed[seed])
        ids = [self._sample(call, position) for position in range(carried, max(call.shape.length, carried + 1))]
        chunk = None if call.shape.chunked else 1
        return Reply(ids=ids, meter=one.meter, queue=one.queue, chunk_tokens=chunk)

    def _sample(self, call: Call, position: int) -> int:
        if position >= call.shape.length - 1:
            return self.ends
        if call.shape.stop_at is not None and 0 <= position - call.shape.stop_at < 2:
            return self._stop_ids[position - call.shape.stop_at]
        return next(self._fresh)

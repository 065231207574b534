"""A `Reply` made concrete for one prompt: the ids and logprobs still to come.

Promise: the same prompt and reply always give the same ids and logprobs, in one request or in several; a plan
resumed after an interruption goes on exactly where it stopped, without the faults and holds it already met.
Concurrency: a plan belongs to one job at a time.
"""

import hashlib
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from tests.fake_sglang.faults import Cut, Fault
from tests.fake_sglang.script import Reply, ScriptError
from tests.fake_sglang.vocabulary import Vocabulary


@dataclass(slots=True)
class Plan:
    """`ids[start:]` and `logprobs[start:]` are to be generated; the client already has `ids[:start]`."""

    reply: Reply
    ids: list[int]
    logprobs: list[float | None]
    stop_id: int | None
    start: int = 0
    faults: tuple[Fault, ...] = ()
    holds: bool = True
    hold_met: bool = False
    queues: bool = True
    queue_met: bool = False

    def resumed(self, known: int, reached: int, extra_faults: Sequence[Fault] = ()) -> "Plan":
        """The rest for a client that knows `known` more ids, after a job that had generated `reached` of them.

        What was met once (faults, hold, queue) is over.
        """
        # A job may have been stopped between its last id before the hold and the hold itself.
        hold_met = self.hold_met or 0 < self.reply.hold_after <= self.start + reached
        return Plan(
            reply=self.reply,
            ids=self.ids,
            logprobs=self.logprobs,
            stop_id=self.stop_id,
            start=self.start + known,
            faults=tuple(extra_faults),
            holds=self.holds and not hold_met,
            queues=self.queues and not self.queue_met,
        )

    def waits_at_hold(self, generated: int) -> bool:
        """Whether the hold stops a job with `generated` ids of its own; passing an open hold lifts it for good."""
        hold = self.reply.hold
        if hold is None or not self.holds or self.start + generated < self.reply.hold_after:
            return False
        self.hold_met = True
        self.holds = not hold.is_set()
        return self.holds

    def waits_in_queue(self) -> bool:
        """Whether the script keeps the request in the waiting queue."""
        queue = self.reply.queue
        if queue is None or not self.queues:
            return False
        self.queue_met = True
        self.queues = not queue.is_set()
        return self.queues

    @property
    def cut(self) -> Cut | None:
        """The fault that ends the request before the model does, if there is one."""
        return next((fault for fault in self.faults if isinstance(fault, Cut)), None)

    def of_type[Kind](self, kind: type[Kind]) -> list[Kind]:
        """The faults of one kind, in order."""
        return [fault for fault in self.faults if isinstance(fault, kind)]


def make_plan(
    reply: Reply,
    input_ids: Sequence[int],
    stop_token_ids: Sequence[int],
    vocabulary: Vocabulary,
    extra_faults: Sequence[Fault] = (),
) -> Plan:
    """Resolve text, the stop id and logprobs; `ScriptError` when the reply does not fit the engine."""
    ids = vocabulary.encode(reply.text) if reply.text is not None else list(reply.ids or ())
    stops = [*vocabulary.eos_token_ids, *stop_token_ids]
    ends_in_stop = bool(ids) and ids[-1] in stops
    stop_id = ids[-1] if ends_in_stop else next(iter(stops), None)
    given = len(ids)
    if reply.finish == "stop" and reply.append_stop and not ends_in_stop:
        if stop_id is None:
            raise ScriptError(
                "Reply.finish is 'stop' but no stop id is known; give eos_token_ids or append_stop=False"
            )
        ids.append(stop_id)
    strangers = [token_id for token_id in ids if not vocabulary.contains(token_id)]
    if strangers:
        raise ScriptError(f"Reply.ids holds {strangers[0]}, outside the vocabulary of {vocabulary.size} ids")
    plan = Plan(
        reply=reply,
        ids=ids,
        logprobs=_logprobs(reply, ids, given, len(input_ids)),
        stop_id=stop_id,
        faults=(*extra_faults, *reply.fault_list),
    )
    _check_reachable(plan)
    return plan


def _logprobs(reply: Reply, ids: list[int], given: int, prompt_length: int) -> list[float | None]:
    made_up: list[float | None] = [
        pseudo_logprob(prompt_length + index, token_id) for index, token_id in enumerate(ids)
    ]
    if reply.logprobs is None:
        return made_up
    if len(reply.logprobs) not in (given, len(ids)):
        raise ScriptError(
            f"Reply.logprobs has {len(reply.logprobs)} values for {given} ids; give one per id, "
            "or script the mismatch with faults.LogprobCount"
        )
    return [*reply.logprobs, *made_up[len(reply.logprobs) :]]


def _check_reachable(plan: Plan) -> None:
    if plan.reply.hold is not None and plan.reply.hold_after >= len(plan.ids):
        raise ScriptError(f"Reply.hold_after is {plan.reply.hold_after}, but the reply has {len(plan.ids)} ids")
    for fault in plan.faults:
        if getattr(fault, "after", 0) > len(plan.ids):
            raise ScriptError(f"{fault} never strikes: the reply has only {len(plan.ids)} ids")


def pseudo_logprob(position: int, token_id: int) -> float:
    """A finite number in (-4, 0] that depends on nothing but the token's place in the sequence and its id.

    A multiple of 2**-15, so it survives float32, as SGLang's logprobs do.
    """
    mixed = (position * 2_654_435_761 ^ (token_id + 1) * 40_503) & 0xFFFFFFFF
    return 0.0 - (mixed >> 7) % (1 << 17) / (1 << 15)


def default_reply(input_ids: Sequence[int], vocabulary: Vocabulary) -> Reply:
    """Three to eight ordinary ids drawn from a hash of the prompt, then the stop id (none defined: length)."""
    digest = hashlib.blake2b(array("q", input_ids).tobytes(), digest_size=8).digest()
    rng = random.Random(digest)
    ids = [vocabulary.random_id(rng) for _ in range(rng.randint(3, 8))]
    return Reply(ids=ids, finish="stop" if vocabulary.eos_token_ids else "length")

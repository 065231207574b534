"""What an agent did and was told, step by step, and which engine requests belong to which step. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fake_sglang import RecordedRequest
from tests.invariants.oracle import Expectation, Oracle
from tests.invariants.wire import Answer
from tests.invariants.world import World


@dataclass
class Exchange:
    """One HTTP call. `order` is the engine's counter when it was sent; without `answer` the agent hung up."""

    body: Mapping[str, Any]
    raw: bytes
    expectation: Expectation
    order: int
    retry_count: int = 0
    step_ids: list[str] = field(default_factory=list)
    answer: Answer | None = None

    @property
    def seed(self) -> int:
        """Names the planned reply; siblings have the seeds after it."""
        return int(self.body["seed"])


@dataclass
class Journal:
    """One session's exchanges in the order in which they were sent."""

    session_id: str
    world: World
    oracle: Oracle
    exchanges: list[Exchange] = field(default_factory=list)

    def steps(self) -> dict[str, Exchange]:
        """Step id -> the exchange that began it, for all steps the agent was told of."""
        found: dict[str, Exchange] = {}
        for exchange in self.exchanges:
            for step_id in exchange.step_ids:
                found.setdefault(step_id, exchange)
        return found

    def requests(self, step_id: str) -> list[RecordedRequest]:
        """The engine requests of a step, oldest first: several if it was preempted or resumed."""
        began = self.steps()[step_id]
        sibling = began.step_ids.index(step_id)
        same = [exchange for exchange in self.exchanges if exchange.seed == began.seed]
        start, end = began.order, float("inf")
        for exchange in same:
            other = bool(exchange.step_ids) and step_id not in exchange.step_ids
            if exchange.order > began.order and other:
                end = min(end, exchange.order)
        asked = self.world.requests(self.session_id, began.seed + sibling)
        mine = [request for request in asked if start < request.order <= end]
        if not mine:
            # A reply that was lost with its connection and is replayed: its requests came before the retry.
            unknown = [exchange.order for exchange in same if not exchange.step_ids and exchange.order <= start]
            assert unknown, f"step {step_id} was answered without an engine request"
            mine = [request for request in asked if unknown[0] < request.order <= start]
        while (before := mine[0].continues) in asked and len(mine[0].input_ids) > len(before.input_ids):
            mine.insert(0, before)  # the agent came back to a step it had left without being told its id
        return mine

    def prompt(self, step_id: str) -> list[int]:
        """The ids that the step's first engine request carried."""
        return self.requests(step_id)[0].input_ids

    def tokens(self, step_id: str) -> list[int]:
        """The ids after the step: prompt and all that was sampled."""
        last = self.requests(step_id)[-1]
        return last.input_ids + last.output_ids

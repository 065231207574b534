"""Plays a program of moves as an agent that keeps its own history and knows nothing of tokens.

One event loop; calls of one move may run concurrently.
"""

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tests.fake_sglang import Reply, faults
from tests.invariants.journal import Exchange, Journal
from tests.invariants.moves import (
    TOOL_SETS,
    Asides,
    Ask,
    Compact,
    Edit,
    Hiccup,
    Join,
    Leave,
    Move,
    Paused,
    Program,
    Retry,
    Turn,
)
from tests.invariants.oracle import Oracle
from tests.invariants.policy import Sample
from tests.invariants.replaying import Messages, appended, edited, replayed
from tests.invariants.wire import Answer, Notice, call
from tests.invariants.world import World


class NoReplyError(AssertionError):
    """A call that should have been answered was not."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(f"no reply to {exchange.raw[:300]!r}: {exchange.answer}")
        self.exchange = exchange


class Agent:
    """One session. `heads` are the histories after each reply it got, the newest last. The engine gets the
    program's quirks."""

    def __init__(self, world: World, session_id: str, program: Program, notice: Notice = lambda moment: None):
        self.world = world
        self.program = program
        self.kwargs = {} if program.thinking else {"enable_thinking": False}
        self.journal = Journal(session_id, world, Oracle(self.kwargs))
        self.heads: list[Messages] = []
        self.samples: dict[int, Sample] = {}
        self._notice = notice
        options, quirks = world.engine.options, program.quirks
        options.incremental, options.version_spans = quirks.incremental, quirks.version_spans
        options.abort_overrun = quirks.abort_overrun

    @property
    def start(self) -> Messages:
        """The history before the first turn."""
        return (
            []
            if self.program.system is None
            else [{"role": self.program.system_role, "content": self.program.system}]
        )

    async def play(self) -> Journal:
        """All moves, one after the other."""
        for move in self.program.moves:
            await self.make(move)
        return self.journal

    async def make(self, move: Move) -> None:
        """One move."""
        match move:
            case Turn(ask, back):
                await self.ask(ask, self.head(back))
            case Edit(ask, index, text):
                await self.ask(ask, edited(self.head(), index, text))
            case Compact(ask):
                await self.ask(ask, self.start)
            case Asides(ask, others, forked):
                own = self.head() if forked else [{"role": "system", "content": "You write titles."}]
                await asyncio.gather(
                    self.ask(ask, self.head()), *(self.ask(one, own, aside=True) for one in others)
                )
            case Retry():
                await self.retry(move)
            case Join(ask, after):
                await self.join(ask, after)
            case Leave(ask, after, come_back):
                await self.leave(ask, after, come_back)
            case Paused(ask, after, update):
                await self.paused(ask, after, update)
            case Hiccup(ask, after):
                sampled = self.length(ask)
                await self.ask(ask, self.head(), fault=faults.DropConnection(after=min(after, sampled)))

    # What the moves are made of.

    def head(self, back: int = 0) -> Messages:
        """The history `back` replies ago, as far as it goes back."""
        return self.heads[max(0, len(self.heads) - 1 - back)] if self.heads else self.start

    def length(self, ask: Ask) -> int:
        """Tokens that the engine samples for `ask`."""
        ids = len(ask.sample.ids(self.world.template.tokenizer))
        return min(ids, ask.max_tokens or ids)

    def prepare(self, ask: Ask, history: Messages, **options: Any) -> Exchange:
        """The call that goes on from `history`, its reply planned with the engine."""
        messages = replayed(history, ask.replay)
        messages += appended(messages, ask)
        seed = self.world.new_seed()
        body: dict[str, Any] = {"model": "m", "messages": messages, "seed": seed, "stream": ask.stream, "n": ask.n}
        body |= {"max_tokens": ask.max_tokens} if ask.max_tokens is not None else {}
        body |= {"stop": ask.stop} if ask.stop is not None else {}
        body |= {"frequency_penalty": 0.5} if ask.penalty else {}
        body |= {"tools": TOOL_SETS[ask.tools]} if TOOL_SETS[ask.tools] is not None else {}
        body |= {"chat_template_kwargs": self.kwargs} if self.kwargs else {}
        self.samples[seed] = ask.sample
        self.plan(seed, ask.n, ask.sample, **options)
        return self.exchange(body, json.dumps(body).encode())

    def plan(self, seed: int, siblings: int, sample: Sample, **options: Any) -> None:
        """Let the engine sample `sample`, and for siblings the same text with other ids and other reasoning;
        `options` are those of `Reply`."""
        for sibling in range(siblings):
            thought = sample.reasoning and sample.reasoning + "." * sibling
            own = replace(sample, reasoning=thought, split=sample.split + sibling)
            self.world.plan(seed + sibling, Reply(ids=own.ids(self.world.template.tokenizer), **options))

    def exchange(self, body: dict[str, Any], raw: bytes, retry_count: int = 0) -> Exchange:
        """A call about to be sent, and what is expected of it now."""
        expectation = self.journal.oracle.expect(body["messages"], body.get("tools"))
        calls = self.world.engine.calls
        exchange = Exchange(body, raw, expectation, calls[-1].order if calls else 0, retry_count)
        self.journal.exchanges.append(exchange)
        return exchange

    async def send(self, exchange: Exchange) -> Answer:
        """Send it; what it answers is learned."""

        def started(step_ids: list[str]) -> None:
            exchange.step_ids = step_ids

        answer = await call(
            self.world.data,
            self.journal.session_id,
            exchange.raw,
            retry_count=exchange.retry_count,
            notice=self._notice,
            started=started,
        )
        exchange.answer = answer
        for step_id, message in zip(answer.step_ids, answer.messages, strict=False):
            self.journal.oracle.learn(step_id, exchange.body["messages"], message, exchange.body.get("tools"))
        return answer

    def accept(self, exchange: Exchange, choice: int = -1) -> None:
        """Go on with a choice of the reply. Raises `NoReplyError` if there is none."""
        if exchange.answer is None or not exchange.answer.complete:
            raise NoReplyError(exchange)
        self.heads.append([*exchange.body["messages"], exchange.answer.messages[choice]])

    async def ask(self, ask: Ask, history: Messages, *, aside: bool = False, fault: Any = None) -> None:
        """One call, whose reply becomes the newest head unless it is an aside."""
        exchange = self.prepare(ask, history, faults=fault or ())
        await self.send(exchange)
        if not aside:
            self.accept(exchange)

    async def repeat(self, exchange: Exchange) -> None:
        """The client library's own retry of a call that brought no reply."""
        self.plan(exchange.seed, exchange.body["n"], self.samples[exchange.seed])  # what was wrong is over
        again = self.exchange(dict(exchange.body), exchange.raw, exchange.retry_count + 1)
        await self.send(again)
        self.accept(again)

    async def retry(self, move: Retry) -> None:
        """A finished call's bytes again."""
        finished = [one for one in self.journal.exchanges if one.answer is not None and one.answer.complete]
        earlier = finished[max(0, len(finished) - 1 - move.back)]
        again = self.exchange(dict(earlier.body), earlier.raw, int(move.marked))
        sample = move.sample or replace(self.samples[again.seed], split=move.back + 7)
        self.plan(again.seed, again.body["n"], sample)
        await self.send(again)
        self.accept(again)

    # Moves that happen while a reply is being sampled.

    async def hold(self, ask: Ask, after: int) -> tuple[Exchange, asyncio.Task[Answer], asyncio.Event]:
        """A call that stands still after `after` tokens (or one before its end) until the event is set. One that
        ends before, by a stop string, is done."""
        release = asyncio.Event()
        reached = min(after, self.length(ask) - 1)
        exchange = self.prepare(ask, self.head(), hold=release, hold_after=reached)
        task = asyncio.create_task(self.send(exchange))
        session, engine = self.journal.session_id, self.world.engine
        await engine.wait_until(
            lambda: any(
                one.done or len(one.output_ids) >= reached for one in self.world.requests(session, exchange.seed)
            )
        )
        return exchange, task, release

    async def join(self, ask: Ask, after: int) -> None:
        """The same bytes, marked, while the first call runs: both get one reply."""
        exchange, task, release = await self.hold(ask, after)
        again = self.exchange(dict(exchange.body), exchange.raw, 1)
        second = asyncio.create_task(self.send(again))
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(task, second)
        self.accept(exchange)

    async def leave(self, ask: Ask, after: int, come_back: bool) -> None:
        """Hang up, and wait until the engine has noticed."""
        exchange, task, release = await self.hold(ask, after)
        [running] = self.world.requests(self.journal.session_id, exchange.seed)
        if running.done:
            await task
            self.accept(exchange)
            return
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await self.world.engine.wait_until(lambda: running.done)
        release.set()
        if come_back:
            await self.repeat(exchange)

    async def paused(self, ask: Ask, after: int, update: bool) -> None:
        """A pause in the middle of the reply."""
        exchange, task, release = await self.hold(ask, after)
        pause = await self.world.post("/v1/rollout/pause")
        assert pause["quiesced"], pause
        if update:
            self.world.engine.set_weight_version(f"v{exchange.seed}")
        release.set()
        await self.world.post("/v1/rollout/resume", pause_id=pause["pause_id"])
        await task
        self.accept(exchange)

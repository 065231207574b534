"""A random agent as data: a program is a list of moves, each a way in which real agents call a chat API. Pure."""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.invariants.policy import IM_END, Sample, samples, words

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.title()} at something.",
            "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}},
        },
    }
    for name in ("look", "add")
]
TOOL_SETS = (TOOLS, TOOLS[:1], None)


@dataclass(frozen=True)
class Replay:
    """What the client's library does to the replies it sends back."""

    drop_reasoning: bool = False
    respell_arguments: bool = False
    punctuate_ids: bool = False
    pad_content: bool = False
    null_content: bool = False
    as_parts: bool = False


@dataclass(frozen=True)
class Ask:
    """One call. Open tool calls are answered with `results` (in the order that `order` seeds; negative: without
    ids), else, or with `and_user` as well, the user says `text`. `tools` indexes `TOOL_SETS`."""

    sample: Sample = field(default_factory=Sample)
    text: str = "Go on."
    results: tuple[str, ...] = ("done",)
    order: int = 0
    and_user: bool = False
    stream: bool = False
    max_tokens: int | None = None
    stop: str | None = None
    n: int = 1
    replay: Replay = field(default_factory=Replay)
    tools: int = 0
    penalty: bool = False


@dataclass(frozen=True)
class Turn:
    """Go on from the reply `back` replies ago: 0 is the next turn, more is a branch."""

    ask: Ask
    back: int = 0


@dataclass(frozen=True)
class Edit:
    """Rewrite one message of the history (counted modulo its length), then go on."""

    ask: Ask
    index: int
    text: str


@dataclass(frozen=True)
class Compact:
    """Start over with a summary behind the same system message."""

    ask: Ask


@dataclass(frozen=True)
class Asides:
    """The next turn, and beside it calls of sub-agents: with histories of their own, or forked from this one."""

    ask: Ask
    others: tuple[Ask, ...]
    forked: bool


@dataclass(frozen=True)
class Retry:
    """Send an earlier call's very bytes again, marked by the client library or not. What is sampled anew is
    `sample`, or the same text as before in other ids."""

    marked: bool
    back: int
    sample: Sample | None


@dataclass(frozen=True)
class Join:
    """The client's library gives up waiting and repeats the call, marked, while it still runs."""

    ask: Ask
    after: int


@dataclass(frozen=True)
class Leave:
    """Hang up after `after` tokens; then come back with a marked retry, or never."""

    ask: Ask
    after: int
    come_back: bool


@dataclass(frozen=True)
class Paused:
    """The trainer pauses after `after` tokens, perhaps updates the weights, and resumes."""

    ask: Ask
    after: int
    update: bool


@dataclass(frozen=True)
class Hiccup:
    """The engine's connection breaks after `after` tokens."""

    ask: Ask
    after: int


Move = Turn | Edit | Compact | Asides | Retry | Join | Leave | Paused | Hiccup


@dataclass(frozen=True)
class Quirks:
    """What differs between SGLang servers: incremental streams, tokens sampled after an abort, version spans."""

    incremental: bool = False
    abort_overrun: int = 0
    version_spans: bool = True


@dataclass(frozen=True)
class Program:
    """One agent run."""

    system: str | None
    thinking: bool
    moves: tuple[Move, ...]
    system_role: str = "system"
    quirks: Quirks = field(default_factory=Quirks)


_SPELLINGS = ("<|im_end|>", "<|im_start|>assistant\n", "<tool_call>", "</think>", "<|endoftext|>")
texts = words | st.tuples(words, st.sampled_from(_SPELLINGS), words).map("".join)

asks = st.builds(
    Ask,
    sample=samples,
    text=texts,
    results=st.lists(texts, min_size=1, max_size=3).map(tuple),
    order=st.integers(-1, 20),
    and_user=st.booleans(),
    stream=st.booleans(),
    max_tokens=st.none() | st.none() | st.integers(1, 12),
    stop=st.sampled_from([None] * 9 + ["e", "\n", "ok", " 21 °C", "🎉"]),
    n=st.sampled_from([1, 1, 1, 1, 2]),
    replay=st.builds(Replay, *[st.booleans()] * 6),
    tools=st.sampled_from([0] * 18 + [1, 2]),
    penalty=st.sampled_from([False] * 7 + [True]),
)
_one = asks.map(lambda ask: ask if ask.n == 1 else Ask(sample=ask.sample, text=ask.text, stream=ask.stream))
_after = st.sampled_from([0, 1, 2, 3, 5, 8])
turns = st.builds(Turn, asks)
moves = st.one_of(
    turns,
    turns,
    turns,
    st.builds(Turn, asks, back=st.integers(1, 3)),
    st.builds(Edit, asks, index=st.integers(0, 30), text=words),
    st.builds(Compact, asks),
    st.builds(Asides, asks, st.lists(asks, min_size=1, max_size=2).map(tuple), st.booleans()),
    st.builds(Retry, st.booleans(), st.integers(0, 2), st.none() | samples),
    st.builds(Join, _one, _after),
    st.builds(Leave, _one, _after, st.booleans()),
    st.builds(Paused, _one, _after, st.booleans()),
    st.builds(Hiccup, _one, _after),
)


def programs(max_moves: int = 9) -> st.SearchStrategy[Program]:
    """Random agent runs of at least four moves; the first is a turn."""
    return st.builds(
        lambda system, thinking, first, rest, role, quirks: Program(system, thinking, (first, *rest), role, quirks),
        st.none() | words,
        st.sampled_from([True, True, False]),
        turns,
        st.lists(moves, min_size=3, max_size=max_moves - 1),
        st.sampled_from(["system", "system", "developer"]),
        st.builds(Quirks, st.booleans(), st.integers(0, 1), st.booleans()),
    )


def plain_asks() -> st.SearchStrategy[Ask]:
    """Calls that end by the model's own stop token, for tests about something else."""
    return asks.map(
        lambda ask: Ask(
            sample=Sample(
                ask.sample.content, ask.sample.reasoning, ask.sample.calls, split=ask.sample.split, stop=IM_END
            ),
            text=ask.text,
            results=ask.results,
            stream=ask.stream,
        )
    )

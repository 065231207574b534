"""What the policy behind the stand-in engine samples: text, calls and reasoning, as ids that nobody would encode.

Real policies sample splits that no encoder makes, quote control tokens as text, and emit bytes that are no UTF-8.
Pure data and pure functions.
"""

import json
import random
from dataclasses import dataclass

from hypothesis import strategies as st
from tokenizers import Tokenizer

IM_END, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"
_ORDINARY_BELOW = 151_643
_STRANGE_IDS = (151_644, 151_646, 151_652, 94, 95, 160, 222, 223)
"""Qwen3's `<|im_start|>` and two vision tokens, which are sampled at times, and single bytes above 0x7f."""

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "",
        "hm",
        "It is 21 °C.",
        "🎉👩‍👩‍👧",
        "\n\n",
        "  spaced  ",
        "naïve café",
        "日本語",
        "\ue000\U000f0000\U00100000",
    ]
)
_scalars = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | words
)  # integers beyond 64 bits and infinities are what a model can write
_arguments = st.dictionaries(words, _scalars | st.lists(_scalars, max_size=2), max_size=3)


@dataclass(frozen=True)
class Call:
    """A tool call as the model writes it; `arguments` is JSON text in the model's own spelling."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Sample:
    """One reply. `quoted` is a control token's spelling written as ordinary text; `strange` are raw ids after the
    content; `cut_call` leaves the last call without its end; `split` seeds the non-canonical split (0: none)."""

    content: str = "ok"
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    quoted: str = ""
    strange: tuple[int, ...] = ()
    cut_call: bool = False
    split: int = 0
    stop: str = IM_END

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """The ids, the stop token last."""
        thought = f"<think>\n{self.reasoning}\n</think>\n\n" if self.reasoning is not None else ""
        ids = _encode(tokenizer, thought + self.content)
        middle = len(self.quoted) // 2
        for half in (self.quoted[:middle], self.quoted[middle:]):  # no half is a control token
            ids += _encode(tokenizer, half)
        ids += self.strange
        written = "".join(f"\n<tool_call>\n{_call_text(call)}\n</tool_call>" for call in self.calls)
        ids += _encode(tokenizer, written.removesuffix("</tool_call>") if self.cut_call else written)
        stop = tokenizer.token_to_id(self.stop)
        assert stop is not None
        ids = [token for token in ids if token not in (stop, tokenizer.token_to_id(IM_END))]
        return [*(_split(ids, tokenizer, random.Random(self.split)) if self.split else ids), stop]


def _call_text(call: Call) -> str:
    return f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _split(ids: list[int], tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    """The same bytes in other tokens: about half of the longer tokens fall in two."""
    result: list[int] = []
    for token in ids:
        spelled = tokenizer.id_to_token(token) or ""
        if token < _ORDINARY_BELOW and len(spelled) > 1 and rng.random() < 0.5:
            at = rng.randrange(1, len(spelled))
            halves = [tokenizer.token_to_id(spelled[:at]), tokenizer.token_to_id(spelled[at:])]
            if None not in halves:
                result += [half for half in halves if half is not None]
                continue
        result.append(token)
    return result


def _write(arguments: dict[str, object], style: int) -> str:
    separators = ((", ", ": "), (",", ":"), (" , ", " : "))[style % 3]
    return json.dumps(arguments, ensure_ascii=style % 2 == 0, separators=separators)


calls = st.builds(
    Call,
    name=st.sampled_from(["look", "add", "not_offered"]),
    arguments=st.builds(_write, _arguments, st.integers(0, 5))
    | st.sampled_from(['{"a": 1, "a": 2}', '{"x": "\\ud800"}', '"no object"', "{broken", '{"b": 1.0, "a": 1E2}']),
)
_strange = st.lists(st.integers(0, _ORDINARY_BELOW - 1) | st.sampled_from(_STRANGE_IDS), max_size=3).map(tuple)

samples = st.builds(
    Sample,
    content=words,
    reasoning=st.none() | words,
    calls=st.just(()) | st.lists(calls, min_size=1, max_size=3).map(tuple),
    quoted=st.sampled_from(["", "", "", IM_END, "<tool_call>", "</think>", "<|im_start|>user\n"]),
    strange=st.just(()) | _strange,
    cut_call=st.sampled_from([False, False, False, True]),
    split=st.integers(0, 1000),
    stop=st.sampled_from([IM_END, IM_END, IM_END, IM_END, END_OF_TEXT]),
)

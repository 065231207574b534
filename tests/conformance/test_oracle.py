"""The matrix can fail: the oracle finds each way in which an appended text can be wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.conversations import cases
from tests.conformance.corpus import Sample
from tests.conformance.matrix import Trial, model_of
from tests.conformance.oracle import Printed, is_closed, judge, printed, printed_stops
from tests.conformance.renderer import Renderer, forms
from tests.conformance.settings import Setting, Vocabularies

STOPS = ["<|end|>", "<|return|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def found(followed: str, alone: str | None) -> Printed:
    return Printed([], [{"content": "Tell me more."}], "", followed, alone, False)


CLOSED = found("<|end|>\n<|user|>Tell me more.<|end|>\n<|bot|>", "<|end|>\n")
OPENER = found("<|end|>Tell me more.<|return|>", "")
REWRITTEN = found("<|stop|><|user|>Tell me more.<|stop|><|bot|>", "<|return|>")
UNCLOSED = found("\nUser: Tell me more.\nBot:", "\n")
CALL = found('"}</call><|end|><|user|>Tell me more.<|end|>', '"}</call><|end|>')
UNCLOSED_CALL = found('"}</call><|user|>Tell me more.<|end|>', '"}</call>')
AMENDED_CALL = found('"}, "id": 1}</call><|end|><|user|>Tell me more.<|end|>', '"}}</call><|end|>')


@pytest.mark.parametrize(
    ("case", "text", "with_calls"),
    [
        (CLOSED, CLOSED.followed, False),
        (OPENER, OPENER.followed, False),
        (REWRITTEN, REWRITTEN.followed, False),
        (UNCLOSED, UNCLOSED.followed, False),
        (CALL, "<|end|><|user|>Tell me more.<|end|>", True),
        (UNCLOSED_CALL, "<|user|>Tell me more.<|end|>", True),
        (AMENDED_CALL, "<|end|><|user|>Tell me more.<|end|>", True),
    ],
)
def test_what_is_right_is_right(case: Printed, text: str, with_calls: bool) -> None:
    assert judge(case, text, with_calls=with_calls, stops=STOPS) is None


@pytest.mark.parametrize(
    ("case", "text", "with_calls", "why"),
    [
        (CLOSED, "<|end|>\n<|user|>Tell me less.<|end|>\n<|bot|>", False, "is not what the template prints"),
        (CLOSED, "<|end|><|end|>\n<|user|>Tell me more.<|end|>\n<|bot|>", False, "is not what the template prints"),
        (CLOSED, "\n<|user|>Tell me more.<|end|>\n<|bot|>", False, "'<|end|>' closes the reply and is lost"),
        (CLOSED, "<|end|>\n<|bot|>", False, "closes the reply and is lost"),
        (OPENER, "Tell me more.<|return|>", False, "closes the reply and is lost"),
        (REWRITTEN, "<|user|>Tell me more.<|stop|><|bot|>", False, "'<|stop|>' is lost"),
        (UNCLOSED, "User: Tell me more.\nBot:", False, "is lost"),
        (CALL, "<|end|>", True, "closes the reply and is lost"),
        (UNCLOSED_CALL, "<|end|>", True, "of the appended messages is lost"),
        (UNCLOSED_CALL, "</call><|user|>Tell me more.<|end|>", True, "is the call's own and comes twice"),
    ],
)
def test_what_is_wrong_is_found(case: Printed, text: str, with_calls: bool, why: str) -> None:
    assert why in (judge(case, text, with_calls=with_calls, stops=STOPS) or "")


def test_without_the_reply_alone_only_a_closing_token_tells_its_end() -> None:
    silent = found(CALL.followed, None)
    assert judge(silent, "<|end|><|user|>Tell me more.<|end|>", with_calls=True, stops=STOPS) is None
    assert judge(silent, "<|user|>Tell me more.<|end|>", with_calls=True, stops=["<|return|>"]) is not None


def test_a_rewritten_stop_token_closes() -> None:
    assert is_closed(REWRITTEN, REWRITTEN.followed, STOPS)
    assert not is_closed(UNCLOSED, UNCLOSED.followed, STOPS)


def test_stop_tokens_are_read_off_what_is_printed() -> None:
    known = {"<|end|>", "<|stop|>", "<|return|>", "<|user|>"}
    assert printed_stops(CLOSED, known) == {"<|end|>"}
    assert printed_stops(OPENER, known) == {"<|end|>"}
    assert printed_stops(REWRITTEN, known) == {"<|return|>"}
    assert printed_stops(UNCLOSED, known) == set()
    assert printed_stops(CALL, known) == {"<|end|>"}
    assert printed_stops(found(CALL.followed, None), known) == set()


def test_every_form_of_a_conversation_differs() -> None:
    case = next(case for case in cases() if case.name == "tool")
    spelled = [repr(form) for form in forms([*case.history, case.reply])]
    assert len(set(spelled)) == len(spelled) == 16
    assert len(list(forms(case.history))) == 2


def test_the_oracle_knows_what_a_template_cannot_do() -> None:
    case = next(case for case in cases() if case.name == "tool")
    refusing = Renderer("{{ raise_exception('no tools') if tools }}" + CHATML, {})
    assert "no tools" in str(printed(refusing, case))
    assert "not printed" in str(printed(Renderer(CHATML.replace("c.function.arguments", "c.id"), {}), case))


class TestTheProduct:
    """A product that is wrong in one place is found out by the matrix's own trial."""

    @pytest.fixture(scope="class")
    @staticmethod
    def vocabularies() -> Vocabularies:
        return Vocabularies([CHATML])

    def trial(self, vocabularies: Vocabularies) -> Trial:
        setting = Setting(Sample("small", "small", 0, CHATML), "ChatML", "qwen3", {"eos_token": "<|im_end|>"}, None)
        stops = ["<|im_end|>", "<|endoftext|>"]
        return Trial(model_of(setting, stops, vocabularies), stops)

    def outcomes(self, trial: Trial) -> dict[str, str]:
        renderer = Renderer(CHATML, {})
        return {case.name: trial.judged(case, printed(renderer, case)) for case in cases()}

    def test_a_right_one_passes(self, vocabularies: Vocabularies) -> None:
        assert set(self.outcomes(self.trial(vocabularies)).values()) == {""}

    @pytest.mark.parametrize("printed_instead", ["", "<|im_end|>", "Hm."])
    def test_another_text_behind_a_reply_is_found(
        self, vocabularies: Vocabularies, printed_instead: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trial = self.trial(vocabularies)
        original = type(trial.model.builder).reply_followed

        def changed(*arguments: object) -> str:
            return original(*arguments).replace("<|im_end|>\n", printed_instead, 1)  # type: ignore[arg-type]

        monkeypatch.setattr(type(trial.model.builder), "reply_followed", changed)
        assert "" not in self.outcomes(trial).values()

    def test_other_ids_of_the_same_text_are_found(
        self, vocabularies: Vocabularies, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trial = self.trial(vocabularies)
        codec = trial.model.codec
        original = codec.encode

        def by_letter(text: str, *arguments: object, after: int | None = None) -> np.ndarray:
            head, marked, rest = text.partition("Tell me more.")
            return np.concatenate([original(head, after=after), *map(original, marked), original(rest)])

        monkeypatch.setattr(codec, "encode", by_letter)
        assert "other ids than the tokenizer's" in self.outcomes(trial)["user"]

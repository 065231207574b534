"""Seams where a tokenizer does not encode a text piece by piece: SentencePiece's beginnings, tokens that eat space.

Tiny tokenizers that show each of them. Either the delta's ids are those of the whole text, or the self-test says
that they are not.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from sidecar.tito.chat_template import ChatTemplate
from sidecar.tito.codec import Codec, Protection
from sidecar.tito.delta import Conversation, Delta, PromptBuilder
from sidecar.tito.messages import Message
from sidecar.tito.selftest import Verdict, check_template
from tests.tito.builders import CLOCK, byte_tokenizer

SPACED = (
    "{% for m in messages %}{{ m.role }} says {{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant says {% endif %}"
)
"""Text, not a control token, follows the token that closes a reply."""
UNCLOSED = SPACED.replace("<end>\n", " ")
CONVERSATION = Conversation(None, {}, CLOCK)


def sentencepiece(*added: AddedToken | str, scheme: str = "first", legacy: bool = False) -> Tokenizer:
    """Pieces with `▁` for a space. `first`: a text gets one in front, what follows a control token gets none.
    `legacy`: Llama 2's way, by a normaliser that puts one before every stretch between control tokens."""
    letters = [chr(code) for code in range(32, 127)] + ["▁", "…", "\n", "<end>"]
    names = [*letters, *(f"▁{letter}" for letter in letters if letter != "▁")]
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(names))}
    merges = [("▁", letter) for letter in letters if letter != "▁" and f"▁{letter}" in vocabulary]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
        tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    tokenizer.add_special_tokens([token if isinstance(token, AddedToken) else AddedToken(token) for token in added])
    return tokenizer


def builder(template: str, tokenizer: Tokenizer, stop: str = "<end>") -> PromptBuilder:
    codec = Codec(tokenizer)
    stop_id = codec.token_id(stop)
    assert stop_id is not None
    return PromptBuilder(ChatTemplate(template, {}), codec, frozenset({stop_id}))


def verdict(template: str, tokenizer: Tokenizer) -> Verdict:
    return check_template(builder(template, tokenizer))


def delta_of(made: PromptBuilder) -> Delta:
    question, answer, more = Message("user", "Why?"), Message("assistant", "So."), Message("user", "Sure?")
    return made.delta([question], answer, [more], CONVERSATION)


def ids_of_the_whole(tokenizer: Tokenizer, delta: str) -> list[int]:
    before = tokenizer.encode("So.<end>", add_special_tokens=False).ids
    whole = tokenizer.encode(f"So.<end>{delta}", add_special_tokens=False).ids
    assert whole[: len(before)] == before
    return whole[len(before) :]


class TestSentencePiece:
    DELTA = "user says Sure?<end>assistant says "

    def template(self) -> str:
        return SPACED.replace("\n", "")

    def test_a_text_begins_otherwise_than_it_goes_on(self) -> None:
        tokenizer = sentencepiece("<end>")
        alone = tokenizer.encode(self.DELTA, add_special_tokens=False).ids
        assert alone != ids_of_the_whole(tokenizer, self.DELTA)
        assert tokenizer.id_to_token(alone[0]) == "▁u"

    def test_the_delta_goes_on_behind_the_closing_token(self) -> None:
        tokenizer = sentencepiece("<end>")
        assert delta_of(builder(self.template(), tokenizer)).ids.tolist() == ids_of_the_whole(tokenizer, self.DELTA)
        assert verdict(self.template(), tokenizer).outcome == "exact"

    def test_llama_2s_way_begins_every_stretch_alike(self) -> None:
        tokenizer = sentencepiece("<end>", legacy=True)
        expected = ids_of_the_whole(tokenizer, self.DELTA)
        assert tokenizer.id_to_token(expected[0]) == "▁u"
        assert delta_of(builder(self.template(), tokenizer)).ids.tolist() == expected
        assert verdict(self.template(), tokenizer).outcome == "exact"

    def test_a_closing_token_that_is_no_boundary_is_caught(self) -> None:
        """`<end>` is an ordinary piece here, so that nothing can be encoded behind it alone."""
        found = verdict(self.template(), sentencepiece())
        assert found.outcome == "refused"
        assert "the tokenizer merges across '<end>'" in found.failures["user"]

    def test_a_beginning_behind_a_reply_that_nothing_closes_is_caught(self) -> None:
        """No reply is followed by the piece `▁user` that the delta would begin with."""
        found = verdict(UNCLOSED.replace(" {% endfor", "{% endfor"), sentencepiece("<end>"))
        assert found.outcome == "refused"
        assert "the tokenizer merges across ''" in found.failures["user"]

    def test_a_protected_piece_gets_no_beginning_either(self) -> None:
        tokenizer = sentencepiece("<end>", "<user>")
        codec, protection = Codec(tokenizer), Protection()
        content = codec.protect("a<end>b", protection)
        ids = codec.encode(f"<user>{content}<end>", protection).tolist()
        assert [tokenizer.id_to_token(index) for index in ids] == ["<user>", *"a<end>b", "<end>"]

    def test_a_protected_piece_at_the_beginning_of_a_prompt_has_one(self) -> None:
        codec, protection = Codec(sentencepiece("<end>")), Protection()
        content = codec.protect("a<end>b", protection)
        ids = codec.encode(content, protection).tolist()
        assert codec.decode(ids[:1]) == "a"
        assert ids[0] == codec.token_id("▁a")


class TestTokensThatEatSpaces:
    def rstrip(self) -> AddedToken:
        return AddedToken("<end>", rstrip=True, special=True, normalized=False)

    def tokenizer(self, added: Sequence[AddedToken | str]) -> Tokenizer:
        tokenizer = byte_tokenizer()
        tokenizer.add_special_tokens(list(added))
        return tokenizer

    def test_a_closing_token_eats_the_line_break_behind_it(self) -> None:
        tokenizer = self.tokenizer([self.rstrip()])
        delta = "\nuser says Sure?<end>\nassistant says "
        alone = tokenizer.encode(delta, add_special_tokens=False).ids
        expected = ids_of_the_whole(tokenizer, delta)
        assert alone[1:] == expected
        assert tokenizer.decode(alone[:1]) == "\n"

    def test_the_delta_lacks_what_the_closing_token_eats(self) -> None:
        tokenizer = self.tokenizer([self.rstrip()])
        made = builder(SPACED, tokenizer)
        delta = delta_of(made)
        assert delta.text == "\nuser says Sure?<end>\nassistant says "
        assert delta.ids.tolist() == ids_of_the_whole(tokenizer, delta.text)
        assert check_template(made).outcome == "exact"

    def test_a_token_within_the_delta_that_eats_to_its_left_is_no_fault(self) -> None:
        lstrip = AddedToken("<user>", lstrip=True, special=True, normalized=False)
        tokenizer = self.tokenizer(["<end>", lstrip])
        template = SPACED.replace("{{ m.role }}", "  <user>{{ m.role }}")
        made = builder(template, tokenizer)
        delta = delta_of(made)
        assert delta.ids.tolist() == ids_of_the_whole(tokenizer, delta.text)
        assert check_template(made).outcome == "exact"

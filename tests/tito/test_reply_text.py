"""Text is derived from ids, whatever the chunks they come in, and cut exactly at stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.models.marks import Marks
from adapters.models.reply import Reply, ToolCall, join
from sidecar.tito.codec import Codec
from sidecar.tito.model import Model
from sidecar.tito.reply_text import Detokenizer, ReplyText, StopStrings
from tests.tito.builders import byte_tokenizer

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=120)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
PROMPT = "<|im_start|>assistant\n"
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "Tür 🫨"}}\n</tool_call>'
SAMPLES = [
    "Hello, Größe 🫨 world!",
    f"<think>\nLet me see 🫨.\n</think>\n\nI look.\n{CALL}<|im_end|>",
    f"{CALL}\n{CALL}<|im_end|>",
    f"text {CALL} behind\n\n",
    "<think>never closed 🫨",
    '<tool_call>\n{"name": broken}\n</tool_call> and on<|im_end|>',
    f"{CALL[:-20]}",
    "  <|fim_prefix|> odd <|endoftext|>",
    "",
]


def pieces(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    """`ids` cut at the given positions (modulo their number), empty pieces included."""
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[start:end] for start, end in pairwise(edges)]


def read(model: Model, chunks: Sequence[Sequence[int]], stops: Sequence[str] = ()) -> ReplyText:
    reader = model.reply_text(PROMPT, True, stops, lambda n: f"call_{n}")
    for chunk in chunks:
        reader.push(chunk)
    reader.finish()
    return reader


def reply_of(model: Model, text: str, *stops: str) -> Reply:
    return join(read(model, [model.codec.encode(text).tolist()], stops).deltas)


class TestDetokenizer:
    @pytest.fixture
    def marks(self, qwen3: Model) -> Marks:
        return qwen3.marks

    @SHARED
    @given(
        ids=st.lists(st.one_of(st.integers(0, 300), st.integers(0, 151_642)), max_size=30),
        cuts=st.lists(st.integers(0, 30), max_size=8),
    )
    def test_joined_pieces_are_the_decoded_whole(self, qwen3: Model, ids: list[int], cuts: list[int]) -> None:
        reader = Detokenizer(qwen3.codec, qwen3.marks)
        text = "".join(reader.push(piece) for piece in pieces(ids, cuts)) + reader.flush()
        assert text == Marks.ordinary(qwen3.codec.decode(ids))

    @SHARED
    @given(ids=st.lists(st.integers(0, 260), max_size=40))
    def test_byte_by_byte_gives_the_decoded_whole_at_any_length(self, qwen3: Model, ids: list[int]) -> None:
        reader = Detokenizer(qwen3.codec, qwen3.marks)
        assert "".join(reader.push([index]) for index in ids) + reader.flush() == qwen3.codec.decode(ids)

    def test_a_character_split_over_ids_is_held_until_it_is_whole(self, qwen3: Model) -> None:
        first, second, third = qwen3.codec.encode("🫨").tolist()
        reader = Detokenizer(qwen3.codec, qwen3.marks)
        assert [reader.push([first]), reader.push([second]), reader.push([third])] == ["", "", "🫨"]
        assert reader.flush() == ""

    def test_a_reply_cut_inside_a_character_ends_in_the_replacement_character(self, qwen3: Model) -> None:
        ids = qwen3.codec.encode("party 🫨").tolist()[:-1]
        reader = Detokenizer(qwen3.codec, qwen3.marks)
        assert reader.push(ids) + reader.flush() == f"party {REPLACEMENT}"

    def test_a_long_run_of_bytes_that_are_no_text_is_not_held(self, qwen3: Model) -> None:
        lone = next(i for i in range(300) if qwen3.codec.decode([i]) == REPLACEMENT)
        reader = Detokenizer(qwen3.codec, qwen3.marks)
        shown = "".join(reader.push([lone]) for _ in range(500))
        assert len(shown) > 490
        assert shown + reader.flush() == qwen3.codec.decode([lone] * 500)

    def test_a_character_after_such_a_run_is_whole(self, qwen3: Model) -> None:
        lone = next(i for i in range(300) if qwen3.codec.decode([i]) == REPLACEMENT)
        for length in range(12):
            ids = [lone] * length + qwen3.codec.encode("🫨").tolist()
            reader = Detokenizer(qwen3.codec, qwen3.marks)
            text = "".join(reader.push([index]) for index in ids) + reader.flush()
            assert text == REPLACEMENT * length + "🫨"

    def test_ids_that_hold_halves_of_two_characters_are_held_to_the_end(self) -> None:
        tokenizer = byte_tokenizer(vocab=["©Ã"], merges=[("©", "Ã")])
        codec = Codec(tokenizer)
        lead, halves, tail = (tokenizer.token_to_id(name) for name in ("Ã", "©Ã", "©"))
        ids = [lead, *[halves] * 8, tail]
        assert codec.decode(ids) == "é" * 9
        reader = Detokenizer(codec, Marks({}, frozenset()))
        assert [reader.push([index]) for index in ids] == [""] * 9 + ["é" * 9]

    def test_control_tokens_are_marks_and_end_what_is_held(self, qwen3: Model) -> None:
        ids = [*qwen3.codec.encode("a🫨").tolist()[:-1], 151657]
        reader = Detokenizer(qwen3.codec, qwen3.marks)
        assert reader.push(ids) == f"a{REPLACEMENT}{qwen3.marks.by_token.get(151657)}"
        assert reader.flush() == ""

    def test_private_characters_written_by_a_model_are_no_marks(self, qwen3: Model) -> None:
        mark = qwen3.marks.by_token.get(151657)
        assert mark is not None
        reader = Detokenizer(qwen3.codec, qwen3.marks)
        assert reader.push(qwen3.codec.encode(f"a{mark}b").tolist()) + reader.flush() == f"a{REPLACEMENT}b"


class TestStopStrings:
    def test_without_stop_strings_everything_passes_at_once(self) -> None:
        finder = StopStrings(["", ""])
        assert (finder.push("a"), finder.flush(), finder.matched) == ("a", "", None)

    def test_a_possible_beginning_is_held_until_it_is_none(self) -> None:
        finder = StopStrings(["beta gamma"])
        assert finder.push("alpha bet") == "alpha "
        assert finder.push("a g") == ""
        assert finder.push("ray") == "beta gray"
        assert finder.flush() == ""

    def test_what_is_held_at_the_end_is_text(self) -> None:
        finder = StopStrings(["beta"])
        assert finder.push("a be") + finder.flush() == "a be"

    def test_nothing_passes_after_a_match(self) -> None:
        finder = StopStrings(["STOP"])
        assert finder.push("a STOP b") == "a "
        assert (finder.push("c"), finder.flush(), finder.matched) == ("", "", "STOP")

    def test_the_first_of_several_in_the_text_counts(self) -> None:
        finder = StopStrings(["world", "o w"])
        assert (finder.push("hello world"), finder.matched) == ("hell", "o w")

    def test_the_longest_possible_beginning_is_held(self) -> None:
        finder = StopStrings(["aab", "b"])
        assert finder.push("xaa") == "x"
        assert finder.push("a") == "a"
        assert (finder.push("b"), finder.matched) == ("", "aab")

    @given(
        st.text("ab", max_size=12), st.lists(st.integers(0, 12), max_size=5), st.text("ab", min_size=1, max_size=4)
    )
    def test_one_stop_string_cuts_at_its_first_occurrence_whatever_the_pieces(
        self, text: str, cuts: list[int], stop: str
    ) -> None:
        finder = StopStrings([stop])
        edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
        shown = "".join(finder.push(text[a:b]) for a, b in pairwise(edges)) + finder.flush()
        assert shown == text.partition(stop)[0]
        assert (finder.matched is not None) == (stop in text)


class TestReplyText:
    @SHARED
    @given(sample=st.sampled_from(SAMPLES), cuts=st.lists(st.integers(0, 60), max_size=12))
    def test_every_split_of_the_ids_gives_the_same_reply(self, qwen3: Model, sample: str, cuts: list[int]) -> None:
        ids = qwen3.codec.encode(sample).tolist()
        whole = join(read(qwen3, [ids]).deltas)
        assert join(read(qwen3, pieces(ids, cuts)).deltas) == whole
        assert join(read(qwen3, [[index] for index in ids]).deltas) == whole

    @SHARED
    @given(
        ids=st.lists(st.one_of(st.integers(151_640, 151_668), st.integers(0, 400)), max_size=25),
        cuts=st.lists(st.integers(0, 25), max_size=6),
        stops=st.lists(st.sampled_from(["a", "ab", "</think>", "\n"]), max_size=2),
    )
    def test_any_ids_in_any_split_give_one_reply(
        self, qwen3: Model, ids: list[int], cuts: list[int], stops: list[str]
    ) -> None:
        whole, split = read(qwen3, [ids], stops), read(qwen3, pieces(ids, cuts), stops)
        assert join(split.deltas) == join(whole.deltas)
        assert split.stopped_at == whole.stopped_at

    def test_reasoning_content_and_calls_are_told_apart(self, qwen3: Model) -> None:
        assert reply_of(qwen3, SAMPLES[1]) == Reply(
            content="I look.",
            reasoning="Let me see 🫨.",
            calls=(ToolCall("call_0", "look", '{"at": "Tür 🫨"}'),),
        )

    def test_stop_ids_are_not_shown_but_counted(self, qwen3: Model) -> None:
        ids = qwen3.codec.encode("Hi<|im_end|>").tolist()
        reader = read(qwen3, [ids])
        assert join(reader.deltas).content == "Hi"
        assert reader.consumed == 2

    def test_special_tokens_vanish_for_the_client_and_others_are_spelled(self, qwen3: Model) -> None:
        special, plain = "<|vision_start|>", "<tool_response>"
        assert reply_of(qwen3, f"a{special}b{plain}c").content == f"ab{plain}c"

    def test_a_call_quoted_as_ordinary_ids_is_text(self, qwen3: Model) -> None:
        ids = [
            i for piece in ("<tool", "_call>", CALL[11:-12], "</tool", "_call>") for i in qwen3.codec.encode(piece)
        ]
        reply = join(read(qwen3, [ids]).deltas)
        assert reply.calls == ()
        assert reply.content == CALL

    def test_smollm2_spells_out_what_looks_like_calls(self, smollm2: Model) -> None:
        text = f"<think>x</think>{CALL}"
        assert reply_of(smollm2, text) == Reply(text, "", ())

    def test_finishing_twice_adds_nothing(self, qwen3: Model) -> None:
        reader = read(qwen3, [qwen3.codec.encode("a b ").tolist()])
        before = list(reader.deltas)
        reader.finish()
        assert reader.deltas == before
        assert join(before).content == "a b "


class TestReplyTextStops:
    def test_a_stop_string_across_ids_cuts_exactly_and_names_the_id_that_completes_it(self, qwen3: Model) -> None:
        ids = qwen3.codec.encode("alpha beta gamma delta").tolist()
        reader = read(qwen3, [ids], ["beta gamma"])
        assert join(reader.deltas).content == "alpha "
        assert reader.stopped_at is not None
        assert qwen3.codec.decode(ids[: reader.stopped_at]) == "alpha beta gamma"

    def test_nothing_of_a_possible_stop_string_is_shown_early(self, qwen3: Model) -> None:
        reader = qwen3.reply_text(PROMPT, True, ["beta gamma"], str)
        reader.push(qwen3.codec.encode("alpha beta").tolist())
        assert "beta" not in join(reader.deltas).content
        reader.push(qwen3.codec.encode(" delta").tolist())
        reader.finish()
        assert join(reader.deltas).content == "alpha beta delta"

    def test_ids_behind_the_stop_are_not_read(self, qwen3: Model) -> None:
        reader = qwen3.reply_text(PROMPT, True, ["STOP"], str)
        reader.push(qwen3.codec.encode("a STOP").tolist())
        stopped = reader.stopped_at
        reader.push(qwen3.codec.encode(" more").tolist())
        reader.finish()
        assert reader.stopped_at == stopped == reader.consumed
        assert join(reader.deltas).content == "a "

    @pytest.mark.parametrize("stop", ["</tool_call>", "<tool_call>", "behind"])
    def test_a_stop_string_may_spell_a_control_token(self, qwen3: Model, stop: str) -> None:
        text = f"text {CALL}behind"
        reader = read(qwen3, [qwen3.codec.encode(text).tolist()], [stop])
        assert reader.stopped_at is not None
        reply = join(reader.deltas)
        if stop == "behind":
            assert len(reply.calls) == 1
        else:
            assert (reply.content, reply.calls) == (text.partition(stop)[0], ())

    def test_a_spelling_in_ordinary_ids_stops_as_well(self, qwen3: Model) -> None:
        ids = [*qwen3.codec.encode("a </tool"), *qwen3.codec.encode("_call>"), *qwen3.codec.encode(" b")]
        reader = read(qwen3, [[int(i) for i in ids]], ["</tool_call>"])
        assert join(reader.deltas).content == "a "

    def test_a_stop_string_may_hold_ordinary_text_around_a_control_token(self, qwen3: Model) -> None:
        reader = read(qwen3, [qwen3.codec.encode("x</think>\n\nDone").tolist()], ["</think>\n\nD"])
        assert join(reader.deltas).content == "x"

    def test_a_stop_string_inside_reasoning_ends_the_reply_there(self, qwen3: Model) -> None:
        reply = reply_of(qwen3, "<think>one two three", "two")
        assert (reply.reasoning, reply.content) == ("one", "")

    def test_text_held_for_a_stop_string_that_never_comes_is_given_out(self, qwen3: Model) -> None:
        assert reply_of(qwen3, "alpha beta g", "beta gamma").content == "alpha beta g"

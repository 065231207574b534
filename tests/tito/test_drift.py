"""Replies that decoding and encoding would change: which ids, where, and what no longer fits them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from sidecar.tito.codec import Codec
from sidecar.tito.drift import DriftTotals, ReplyDrift, SampledReply, Stretch, find_drift, total_drift
from sidecar.tito.model import Model
from tests.support.npm import npm_tokenizer
from tests.tito.builders import byte_tokenizer

SMALL = byte_tokenizer("<end>", vocab=["ab", "bc", "abc"], merges=[("a", "b"), ("b", "c"), ("ab", "c")])
A, B, C, AB, BC, ABC, END = (SMALL.token_to_id(name) for name in ("a", "b", "c", "ab", "bc", "abc", "<end>"))


def drift_of(
    codec: Codec, output: Sequence[int], context: Sequence[int] = (), *, trained: bool = True
) -> ReplyDrift:
    return find_drift(codec, SampledReply("s", context, output, trained))


@pytest.fixture(scope="module")
def small() -> Codec:
    return Codec(SMALL)


@pytest.fixture(scope="module")
def deepseek() -> Codec:
    return Codec(Tokenizer.from_file(str(npm_tokenizer("deepseek_v3") / "tokenizer.json")))


def test_the_public_example_of_deepseek_v3_becomes_two_other_ids(deepseek: Codec) -> None:
    drift = drift_of(deepseek, [68249, 23582])
    assert drift.stretches == (Stretch(0, (68249, 23582), (19983, 110697), "大大的一块"),)
    assert (drift.changed, drift.misaligned) == (2, 2), "as many ids as before, and nothing behind them"


def test_replies_that_survive_have_no_drift(qwen3: Model) -> None:
    encode = qwen3.codec.encode
    ids, prompt = encode("Hello, Größe 🎉.<|im_end|>"), encode("<|im_start|>assistant\n")
    assert drift_of(qwen3.codec, ids, prompt) == ReplyDrift("s", True, len(ids), 0, 0, ())
    assert drift_of(qwen3.codec, []) == ReplyDrift("s", True, 0, 0, 0, ())


def test_ids_may_be_arrays_as_they_are_stored(small: Codec) -> None:
    drift = find_drift(small, SampledReply("s", np.asarray([END], np.int32), np.asarray([A, B], np.int32), True))
    assert drift.stretches == (Stretch(0, (A, B), (AB,), "ab"),)
    assert all(type(index) is int for index in (*drift.stretches[0].sampled, *drift.stretches[0].encoded))


def test_each_stretch_is_as_short_as_it_can_be_and_what_lies_between_is_not_listed(small: Codec) -> None:
    drift = drift_of(small, [C, A, B, C, C, A, BC, END])
    assert drift.stretches == (
        Stretch(1, (A, B, C), (ABC,), "abc"),
        Stretch(5, (A, BC), (ABC,), "abc"),
    )


def test_tokens_behind_a_stretch_of_another_length_are_misaligned_until_the_lengths_agree(small: Codec) -> None:
    shorter = drift_of(small, [C, A, B, C, C, C, END])
    assert shorter.changed == 3
    assert shorter.misaligned == 3 + 3, "the two c and the end stand two places earlier"


def test_a_stretch_of_the_same_length_moves_nothing() -> None:
    tokenizer = byte_tokenizer(vocab=["ab", "bc"], merges=[("a", "b"), ("b", "c")])
    a, ab, bc, c = (tokenizer.token_to_id(name) for name in ("a", "ab", "bc", "c"))
    drift = drift_of(Codec(tokenizer), [c, a, bc, c, c])
    assert drift.stretches == (Stretch(1, (a, bc), (ab, c), "abc"),)
    assert (drift.changed, drift.misaligned) == (2, 2)


def test_a_prompt_that_merges_with_the_first_sampled_token_is_found(qwen3: Model) -> None:
    encode = qwen3.codec.encode
    prompt = encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n").tolist()
    newline, rest = encode("\n").tolist(), encode("Hello<|im_end|>").tolist()
    drift = drift_of(qwen3.codec, [*newline, *rest], prompt)
    [stretch] = drift.stretches
    assert stretch == Stretch(-1, (newline[0], newline[0]), tuple(encode("\n\n").tolist()), "\n\n")
    assert drift.changed == 1, "the prompt's newline was not sampled"
    assert drift.misaligned == drift.sampled
    assert drift_of(qwen3.codec, rest, prompt).stretches == ()


def test_what_encoding_changes_in_the_prompt_alone_is_not_the_reply_s_drift(small: Codec) -> None:
    drift = drift_of(small, [C, END], [END, A, B, C])
    assert drift == ReplyDrift("s", True, 2, 0, 0, ())


def test_a_prompt_without_a_control_token_near_its_end_is_left_out(small: Codec) -> None:
    assert drift_of(small, [B, C], [A]).stretches == (Stretch(0, (B, C), (BC,), "bc"),)
    far = [END, *[C] * 256, A]
    assert drift_of(small, [B], far).stretches == ()
    assert drift_of(small, [B], far[2:]).stretches == (), "no control token at all"
    assert drift_of(small, [B], [END, *far[3:]]).stretches == (Stretch(-1, (A, B), (AB,), "ab"),)


def test_a_cut_character_differs_from_its_replacement_and_only_there(qwen3: Model) -> None:
    ids = qwen3.codec.encode("Look: x🫨").tolist()[:-1]
    drift = drift_of(qwen3.codec, ids)
    [stretch] = drift.stretches
    assert stretch.position >= 2
    assert stretch.text.endswith("\N{REPLACEMENT CHARACTER}")
    assert drift.changed < len(ids)


def test_ids_inside_a_character_are_no_place_to_compare_at() -> None:
    tokenizer = byte_tokenizer(vocab=["ðŁ", "ðŁ«"], merges=[("ð", "Ł"), ("ðŁ", "«")])
    two, three, third, fourth = (tokenizer.token_to_id(name) for name in ("ðŁ", "ðŁ«", "«", "¨"))
    codec = Codec(tokenizer)
    assert codec.encode("\N{SHAKING FACE}").tolist() == [three, fourth]
    drift = drift_of(codec, [two, third, fourth])
    assert drift.stretches == (Stretch(0, (two, third), (three,), "\N{REPLACEMENT CHARACTER}"),)


def test_control_tokens_that_were_spelled_out_become_control_tokens(small: Codec) -> None:
    spelled = [SMALL.token_to_id(letter) for letter in "<end>"]
    drift = drift_of(small, [C, *spelled, C, A, B])
    assert drift.stretches[0] == Stretch(1, tuple(spelled), (END,), "<end>")
    assert drift.stretches[1] == Stretch(7, (A, B), (AB,), "ab")


def test_text_that_the_tokenizer_normalises_differs_only_where_it_does(qwen3: Model) -> None:
    codec = qwen3.codec
    before, after = codec.encode("Well, ").tolist(), codec.encode(" is open.").tolist()
    accent = Tokenizer.from_str(codec._tokenizer.to_str())
    accent.normalizer = None
    decomposed = accent.encode("cafe\u0301", add_special_tokens=False).ids
    drift = drift_of(codec, [*before, *decomposed, *after])
    changed = {index for s in drift.stretches for index in range(s.position, s.position + len(s.sampled))}
    assert changed
    assert changed <= set(range(len(before) - 1, len(before) + len(decomposed) + 1))


def test_a_decoder_that_strips_the_first_space_is_compared_in_context() -> None:
    vocab = {name: index for index, name in enumerate(["▁", "a", "b", "▁a", "▁b", "▁ab"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a"), ("▁", "b"), ("▁a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(["<s>"])
    codec, start = Codec(tokenizer), tokenizer.token_to_id("<s>")
    drift = drift_of(codec, [vocab["▁b"], vocab["▁"], vocab["a"], vocab["b"], vocab["▁b"]], [start])
    assert drift.stretches == (Stretch(1, (vocab["▁"], vocab["a"], vocab["b"]), (vocab["▁ab"],), "ab"),)


pieces = st.lists(st.sampled_from([A, B, C, AB, BC, ABC, END]), max_size=40)


@given(output=pieces, context=pieces)
@settings(max_examples=300, deadline=None)
def test_stretches_turn_the_sampled_ids_into_the_encoded_ones_and_are_minimal(
    output: list[int], context: list[int]
) -> None:
    codec = Codec(SMALL)
    drift = drift_of(codec, output, context)
    seam = context[len(context) - context[::-1].index(END) - 1 :] if END in context else []
    sampled = [*seam, *output]
    encoded = codec.encode(codec.decode(sampled)).tolist()
    rebuilt, places, at = [], [], 0
    for stretch in drift.stretches:
        start = stretch.position + len(seam)
        assert start >= at, "in order and apart"
        assert stretch.sampled != stretch.encoded
        assert tuple(sampled[start : start + len(stretch.sampled)]) == stretch.sampled
        assert start + len(stretch.sampled) > len(seam) or not stretch.sampled
        rebuilt += sampled[at:start]
        places += range(at, start)
        rebuilt += stretch.encoded
        places += [-1] * len(stretch.encoded)
        at = start + len(stretch.sampled)
    rebuilt += sampled[at:]
    places += range(at, len(sampled))
    if encoded[: len(seam)] == seam:  # nothing changed in the prompt alone
        assert rebuilt == encoded
    kept = {place for position, place in enumerate(places) if position == place}
    assert drift.misaligned == len(set(range(len(seam), len(sampled))) - kept)
    assert drift.changed == sum(max(0, len(s.sampled) + min(0, s.position)) for s in drift.stretches)
    assert drift.sampled == len(output)


def test_totals_count_trained_tokens_apart(small: Codec) -> None:
    drifts = [
        drift_of(small, [A, B, C, C]),
        drift_of(small, [C, C]),
        drift_of(small, [A, B, C, C], trained=False),
    ]
    assert total_drift(drifts) == DriftTotals(
        turns=3,
        turns_affected=2,
        tokens_sampled=10,
        tokens_changed=6,
        logprobs_misaligned=8,
        tokens_trained=6,
        trained_tokens_affected=4,
    )
    assert total_drift([]) == DriftTotals(0, 0, 0, 0, 0, 0, 0)


class CountingCodec(Codec):
    """Counts the ids it decodes."""

    decoded = 0

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return super().decode(ids)


@pytest.mark.parametrize("unit", [[A, B, C, C], [130, 140, 150, 160]], ids=["scattered", "no_utf8"])
def test_the_work_is_linear_in_the_tokens(unit: list[int]) -> None:
    work = {}
    for repeats in (100, 1000):
        codec = CountingCodec(SMALL)
        assert drift_of(codec, unit * repeats).changed
        work[repeats] = codec.decoded
    assert work[1000] < 11 * work[100]

"""Replies that decoding and encoding would change are found, with the shortest stretch that differs."""

from __future__ import annotations

from sidecar.tito.codec import Codec
from sidecar.tito.drift import Drift, find_drift
from sidecar.tito.model import Model
from tests.tito.builders import byte_tokenizer


def test_replies_that_survive_are_not_listed(qwen3: Model) -> None:
    ids = qwen3.codec.encode("Hello, Größe 🎉.<|im_end|>").tolist()
    assert find_drift(qwen3.codec, [("a", ids), ("b", [])]) == []


def test_a_split_that_the_tokenizer_would_not_make_is_found_and_narrowed_down(qwen3: Model) -> None:
    encode = qwen3.codec.encode
    before, after = encode("I say ").tolist(), encode("!<|im_end|>").tolist()
    odd = [*encode("he").tolist(), *encode("llo").tolist()]
    [drift] = find_drift(qwen3.codec, [("fine", before), ("odd", [*before, *odd, *after])])
    assert drift.step_id == "odd"
    assert qwen3.codec.decode(list(drift.sampled)) == qwen3.codec.decode(list(drift.encoded)) == drift.text
    assert drift.text in "I say hello!"
    assert len(drift.encoded) < len(drift.sampled)


def test_what_encoding_adds_or_loses_at_the_end_is_found() -> None:
    tokenizer = byte_tokenizer(vocab=["ab"], merges=[("a", "b")])
    codec = Codec(tokenizer)
    a, b, ab = (tokenizer.token_to_id(name) for name in ("a", "b", "ab"))
    assert find_drift(codec, [("s", [a, b])]) == [Drift("s", 0, (a, b), (ab,), "ab")]
    assert find_drift(codec, [("s", [ab, a, b, ab])]) == [Drift("s", 1, (a, b), (ab,), "ab")]


def test_a_cut_character_differs_from_its_replacement(qwen3: Model) -> None:
    ids = qwen3.codec.encode("🫨").tolist()[:-1]
    [drift] = find_drift(qwen3.codec, [("s", ids)])
    assert drift.sampled == tuple(ids)
    assert drift.text == "\N{REPLACEMENT CHARACTER}"


def test_one_stretch_spans_all_differences_of_a_reply() -> None:
    tokenizer = byte_tokenizer(vocab=["ab"], merges=[("a", "b")])
    codec = Codec(tokenizer)
    a, b, c, ab = (tokenizer.token_to_id(name) for name in ("a", "b", "c", "ab"))
    [drift] = find_drift(codec, [("s", [c, a, b, c, a, b, c])])
    assert drift == Drift("s", 1, (a, b, c, a, b), (ab, c, ab), "abcab")

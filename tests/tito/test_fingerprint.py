"""Two tellings of one history share a chain; two histories do not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.tito.fingerprint import (
    DIGEST_SIZE,
    Chain,
    MatchRules,
    canonical_arguments,
    chain_of,
    digest,
    exact_form,
    extend_chain,
    lenient_form,
    start_chain,
)
from sidecar.tito.messages import Message
from tests.tito.builders import assistant, call, result, user

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=4)


def reversed_keys(value: Any) -> Any:
    """The same JSON value with every object's keys in the opposite order."""
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


def lenient_equal(one: Message, other: Message) -> bool:
    return lenient_form(one) == lenient_form(other)


class TestArguments:
    @given(objects)
    def test_key_order_spacing_and_escapes_do_not_count(self, value: dict[str, Any]) -> None:
        stored = call("a", json.dumps(value, ensure_ascii=False))
        replayed = call("a", json.dumps(reversed_keys(value), indent=1, ensure_ascii=True))
        assert canonical_arguments(stored) == canonical_arguments(replayed)

    @given(objects, objects)
    def test_different_objects_differ(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
        equal = canonical_arguments(call("a", json.dumps(one))) == canonical_arguments(call("a", json.dumps(other)))
        assert equal == same

    def test_no_arguments_are_the_empty_object(self) -> None:
        assert canonical_arguments(call("a", "")) == canonical_arguments(call("a", "{}")) == "{}"

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ('{"a": 1}', '{"a": 1.0}'),
            ('{"a": true}', '{"a": 1}'),
            ('{"a": null}', "{}"),
            ('{"a": 1, "a": 1}', '{"a": 1}'),
            ('{"a": NaN}', '{"a": null}'),
            ('{"a": 1e999}', '{"a": null}'),
            ('{"a": NaN}', '{"a":NaN}'),
            ("[1, 2]", "[1,2]"),
            ('{"a": 18446744073709551616}', '{"a": 18446744073709551617}'),
        ],
    )
    def test_what_may_mean_something_else_stays_distinct(self, one: str, other: str) -> None:
        assert canonical_arguments(call("a", one)) != canonical_arguments(call("a", other))

    def test_an_integer_beyond_64_bits_is_as_free_of_spacing_and_key_order_as_any(self) -> None:
        one, other = '{"b": 2, "a": 123456789012345678901234567890}', '{"a":123456789012345678901234567890,"b":2}'
        assert canonical_arguments(call("a", one)) == canonical_arguments(call("a", other))
        assert canonical_arguments(call("a", one)) != canonical_arguments(call("a", one.replace("890", "891")))


class TestLenient:
    BASE = assistant("Hello", call("call_1", '{"a":1,"b":2}'), reasoning="hm")

    @pytest.mark.parametrize(
        "replayed",
        [
            replace(BASE, reasoning=None),
            replace(BASE, reasoning="another"),
            replace(BASE, content="Hello \n\t"),
            replace(BASE, calls=(call("call-1", '{"b": 2, "a": 1}'),)),
            replace(BASE, name="agent"),
        ],
    )
    def test_what_clients_lose_or_rewrite_does_not_count(self, replayed: Message) -> None:
        assert lenient_equal(self.BASE, replayed)
        assert exact_form(self.BASE) != exact_form(replayed)

    @pytest.mark.parametrize(
        "replayed",
        [
            replace(BASE, role="user"),
            replace(BASE, content="hello"),
            replace(BASE, content=" Hello"),
            replace(BASE, calls=()),
            replace(BASE, calls=(call("call_2", '{"a":1,"b":2}'),)),
            replace(BASE, calls=(call("call_1", '{"a":1,"b":2}', "other"),)),
            replace(BASE, calls=(call("call_1", '{"a":1.0,"b":2}'),)),
        ],
    )
    def test_what_was_said_counts(self, replayed: Message) -> None:
        assert not lenient_equal(self.BASE, replayed)

    def test_the_call_that_a_result_answers_counts_but_not_its_punctuation(self) -> None:
        assert lenient_equal(result("x", "call_1"), result("x", "call-1"))
        assert not lenient_equal(result("x", "call_1"), result("x", "call_2"))

    def test_text_cannot_pretend_to_be_structure(self) -> None:
        assert not lenient_equal(user('a","b'), user("a"))
        assert not lenient_equal(assistant('", [["1", "look", "{}"]], "'), assistant("", call("1", "{}")))


class TestChain:
    def test_one_chain_per_prefix(self) -> None:
        history = [user("a"), assistant("b"), user("c")]
        chains = chain_of({}, history)
        assert len(chains) == 4
        assert chains[0] == start_chain({})
        assert chains[3] == extend_chain(chains[2], history[2])
        assert {len(digest_) for chain in chains for digest_ in (chain.lenient, chain.exact)} == {DIGEST_SIZE}

    def test_template_arguments_are_part_of_every_history_whatever_their_order(self) -> None:
        assert start_chain({"a": 1, "b": [2]}) == start_chain({"b": [2], "a": 1})
        plain, other = chain_of({}, [user("a")]), chain_of({"enable_thinking": False}, [user("a")])
        assert plain[1].lenient != other[1].lenient
        assert plain[1].exact != other[1].exact

    @given(st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), texts), max_size=5), st.data())
    def test_histories_share_chains_exactly_as_far_as_they_agree(
        self, history: list[Message], data: st.DataObject
    ) -> None:
        changed = list(history)
        if history:
            position = data.draw(st.integers(0, len(history) - 1))
            changed[position] = replace(history[position], content=history[position].content + "x")
        else:
            position = 0
        one, other = chain_of({}, history), chain_of({}, changed)
        agree = [left == right for left, right in zip(one, other, strict=True)]
        assert agree == [index <= position for index in range(len(one))]

    def test_a_message_cannot_be_split_into_two(self) -> None:
        assert chain_of({}, [user("ab")])[-1] != chain_of({}, [user("a"), user("b")])[-1]


class TestVolatile:
    RULES = MatchRules(volatile=(re.compile(r"Now: [^\n]*"), re.compile(r"\[id \d+\]")))

    def chain(self, *messages: Message) -> Chain:
        return chain_of({}, messages, self.RULES)[-1]

    def test_what_matches_counts_in_neither_reading(self) -> None:
        one = Message("system", "Be brief.\nNow: 12:01\n[id 1] Go.")
        other = Message("system", "Be brief.\nNow: 12:02\n[id 23] Go.")
        assert self.chain(one, user("q")) == self.chain(other, user("q"))
        assert chain_of({}, [one])[-1].lenient != chain_of({}, [other])[-1].lenient

    def test_the_rest_of_the_system_message_counts(self) -> None:
        one, other = Message("system", "Be brief.\nNow: 1"), Message("system", "Be long.\nNow: 1")
        assert self.chain(one).lenient != self.chain(other).lenient

    def test_other_roles_are_compared_whole(self) -> None:
        for role in ("user", "assistant", "tool"):
            assert self.chain(Message(role, "Now: 1")).lenient != self.chain(Message(role, "Now: 2")).lenient


def test_a_digest_is_sixteen_bytes_and_depends_on_every_byte() -> None:
    assert len(digest(b"")) == 16
    assert digest(b"a") != digest(b"b")

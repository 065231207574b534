"""One pattern for many spellings finds what an alternation of them finds."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from sidecar.tito.spellings import any_of

WORDS = st.text(alphabet="ab<|.*", min_size=1, max_size=4)


def alternation(spellings: list[str]) -> str:
    return "|".join(sorted(map(re.escape, spellings), key=len, reverse=True))


@given(st.lists(WORDS, min_size=1, max_size=8), st.text(alphabet="ab<|.*c", max_size=30))
def test_it_finds_the_same_as_trying_the_longest_first(spellings: list[str], text: str) -> None:
    assert re.findall(any_of(spellings), text) == re.findall(alternation(spellings), text)


def test_shared_beginnings_are_tried_once() -> None:
    assert any_of(["<a>", "<ab>"]) == "<a(?:>|b>)"
    assert any_of(["ab", "a"]) == "a(?:b)?"
    assert any_of(["<a>"]) == "<a>"
    assert any_of([]) == ""


def test_a_pattern_has_no_groups() -> None:
    assert re.compile(any_of(["(a)", "(b)", "(", "a|b"])).groups == 0

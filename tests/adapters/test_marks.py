"""Control tokens are told from their spellings, and clients see spellings only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.models.marks import REPLACEMENT, Marks

CONTROL = {7: "<call>", 9: "</call>", 3: "<end>", 8: "<call>+"}
MARKS = Marks(CONTROL, frozenset({3}))


def mark(index: int) -> str:
    found = MARKS.by_token.get(index)
    assert found is not None
    return found


def test_every_control_token_has_a_character_of_its_own() -> None:
    marks = [mark(index) for index in CONTROL]
    assert len(set(marks)) == len(CONTROL)
    assert all(len(character) == 1 for character in marks)


def test_ordinary_ids_have_none() -> None:
    assert MARKS.by_token.get(1) is None


def test_a_parser_searches_for_the_mark_or_for_the_spelling_if_there_is_no_such_token() -> None:
    assert MARKS.marked("<call>") == mark(7)
    assert MARKS.marked("<think>") == "<think>"
    assert MARKS.of_spellings(["<call>", "<think>"]) == {mark(7)}


def test_special_tokens_vanish_and_others_are_spelled_out() -> None:
    assert MARKS.display(f"a{mark(7)}b{mark(3)}c{mark(9)}") == "a<call>bc</call>"


def test_special_tokens_are_shown_where_that_is_asked_for() -> None:
    assert MARKS.display(f"{mark(3)}{mark(7)}", {mark(3)}) == "<end><call>"
    assert MARKS.spelled(f"a{mark(3)}{mark(7)}") == "a<end><call>"


def test_a_character_that_marks_nothing_vanishes() -> None:
    assert MARKS.display("a\U0010ffffb") == "ab"
    assert MARKS.spelled("a\U0010ffffb") == "ab"


def test_added_tokens_of_white_space_alone_are_text() -> None:
    """Gemma's tokenizers have one for every number of newlines up to 31."""
    marks = Marks({1: "\n\n", 2: " ", 3: "<call>"}, frozenset())
    assert (marks.by_token.get(1), marks.by_token.get(2)) == (None, None)
    assert marks.marked("a\n\n<call>") == f"a\n\n{marks.by_token.get(3)}"


def test_private_characters_of_ordinary_text_are_no_marks() -> None:
    assert Marks.ordinary(f"a{mark(7)}b") == f"a{REPLACEMENT}b"


@given(st.text(st.characters(max_codepoint=0xFFFFF, exclude_categories=["Cs"])))
def test_other_text_is_left_alone(text: str) -> None:
    assert Marks.ordinary(text) == text
    assert MARKS.display(text) == text


def test_spellings_become_marks_the_longest_first() -> None:
    assert MARKS.marked("a<call>+b<call>c<end>") == f"a{mark(8)}b{mark(7)}c{mark(3)}"
    assert MARKS.marked("plain") == "plain"


def test_without_control_tokens_everything_is_text() -> None:
    none = Marks({}, frozenset())
    assert none.marked("<call>") == "<call>"
    assert none.of_spellings(["<call>"]) == frozenset()

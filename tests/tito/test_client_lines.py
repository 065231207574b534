"""Claude Code's billing header is no part of the system message: stripped by a named, counted rule (case 93)."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.tito.client_lines import count_client_lines, strip_client_lines
from sidecar.tito.errors import MessageError
from sidecar.tito.messages import Message, normalise

HEADER = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=36ee5;"
ASK = {"role": "user", "content": "q"}


def system(content: Any, role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": content}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize(
    "content",
    [
        f"{HEADER}\nBe brief.",
        f"{HEADER}\n\nBe brief.",
        f"{HEADER}\n{HEADER}\nBe brief.",
        parts(HEADER, "Be brief."),
        parts(f"{HEADER}\nBe ", "brief."),
        parts("Be ", f"{HEADER}\nbrief."),
    ],
)
@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_line_is_taken_from_the_beginning_of_every_block(content: Any, role: str) -> None:
    wire = [system(content, role), ASK]
    assert normalise(wire) == [Message("system", "Be brief."), Message("user", "q")]
    lines = str(content).count("cch=36ee5")
    assert count_client_lines(wire) == {"billing_header": lines}


def test_a_system_message_that_held_nothing_else_was_never_meant() -> None:
    assert normalise([system(HEADER), system("Be brief."), ASK])[0] == Message("system", "Be brief.")
    assert normalise([system(parts(HEADER)), ASK]) == [Message("user", "q")]


def test_an_empty_system_message_of_the_clients_own_stays() -> None:
    assert normalise([system(""), ASK]) == [Message("system", ""), Message("user", "q")]


def test_a_request_of_nothing_else_is_refused() -> None:
    with pytest.raises(MessageError, match="send a user message"):
        normalise([system(HEADER)])


def test_errors_name_the_message_as_it_was_sent() -> None:
    orphan = {"role": "tool", "tool_call_id": "a", "content": "x"}
    with pytest.raises(MessageError) as caught:
        normalise([system(HEADER), ASK, orphan])
    assert caught.value.param == "messages[2].role"


@pytest.mark.parametrize("text", [f"Never print {HEADER}", f" {HEADER}", "x-anthropic-billing: y", ""])
def test_text_about_such_a_line_stays(text: str) -> None:
    assert strip_client_lines(text) == (text, [])
    assert count_client_lines([system(text), system(None)]) == {}


def test_other_roles_may_quote_it() -> None:
    wire = [{"role": "user", "content": HEADER}]
    assert normalise(wire) == [Message("user", HEADER)]
    assert count_client_lines(wire) == {}

"""Secrets do not reach what is kept."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.sessions.keys import session_key
from trainer_hooks.redaction import REDACTED, Redactor

KEY = session_key("a-session", b"secret")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"key is {KEY}.", KEY),
        ("the token-of-mine is here", "token-of-mine"),
        ("Authorization: Bearer abcdefgh12345678\nnext", "abcdefgh12345678"),
        ("{'Authorization': 'Basic dXNlcjpwYXNz'}", "dXNlcjpwYXNz"),
        ('"authorization": "token 0123456789abcdef"', "0123456789abcdef"),
        ("x-api-key: 0123456789", "0123456789"),
        ("curl -H 'Cookie: id=0123456789; more=abcdef'", "abcdef"),
        ("sent bearer 0123456789abcdef", "0123456789abcdef"),
        ("sk-proj-0123456789abcdefghij", "0123456789abcdefghij"),
        ("ghp_0123456789abcdefghij0123", "0123456789abcdefghij0123"),
        ("hf_abcdefghijklmnopqrstuvwx", "abcdefghijklmnopqrstuvwx"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4", "SflKxwRJSMeKKF2QT4"),
        ("OPENAI_API_KEY=0123456789", "0123456789"),
        ("export DB_PASSWORD='hunter2hunter2'", "hunter2hunter2"),
        ('{"client_secret": "0123456789"}', "0123456789"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
        ("postgresql://user:hunter2@db/x", "hunter2"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE cut off", "MIIE"),
    ],
)
def test_a_secret_goes_and_what_is_around_it_stays(text: str, secret: str) -> None:
    redacted = Redactor(["token-of-mine", None, ""]).text(f"before\n{text}\nafter")
    assert secret not in redacted
    assert REDACTED in redacted
    assert redacted.startswith("before\n")


@pytest.mark.parametrize(
    "text",
    [
        "The tokenizer has 151643 tokens; max_tokens=4096, prompt_tokens: 12345678.",
        "Use the key `name` to sort; the secret is to practise.",
        "def bearer(x): return x",
        "sk-short, tito-sidecar, https://example.org/a:b@c",
        "token: abc",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert Redactor().text(text) == text


def test_json_is_redacted_in_values_keys_and_under_telling_names() -> None:
    tree: Any = {
        "api_key": "x",
        "tokens": [1, 2, 3],
        "logprobs": [-0.5, 0.0],
        "nested": [{"content": f"my {KEY}"}, None, True, 1.5],
        KEY: "key",
        "empty_token": "",
    }
    assert Redactor().tree(tree) == {
        "api_key": REDACTED,
        "tokens": [1, 2, 3],
        "logprobs": [-0.5, 0.0],
        "nested": [{"content": f"my {REDACTED}"}, None, True, 1.5],
        REDACTED: "key",
        "empty_token": "",
    }


def test_text_of_many_blocks_is_whole_again_and_no_secret_is_lost_between_them() -> None:
    line = "OPENAI_API_KEY=0123456789 " + "x" * 70 + "\n"
    text = line * 3000
    assert Redactor().text(text) == line.replace("0123456789", REDACTED) * 3000
    one_word = "x" * 100_000
    assert Redactor().text(one_word) == one_word


def test_a_redactor_does_not_show_its_secrets() -> None:
    assert "mine" not in repr(Redactor(["token-of-mine"]))

"""A session key opens its own session under its own secret, and nothing else."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.sessions.keys import looks_like_key, session_key, session_of

SECRET = b"secret"
ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@given(ids, st.binary(min_size=1, max_size=40))
def test_a_key_opens_its_session_under_its_secret(session_id: str, secret: bytes) -> None:
    key = session_key(session_id, secret)
    assert session_of(key, secret) == session_id
    assert looks_like_key(key)
    assert key.isascii()
    assert not set(key) & set(" \t\r\n,;=\"'")


@given(ids, ids)
def test_two_sessions_have_two_keys(one: str, other: str) -> None:
    assert (session_key(one, SECRET) == session_key(other, SECRET)) == (one == other)


@given(ids)
def test_another_secret_opens_nothing(session_id: str) -> None:
    assert session_of(session_key(session_id, SECRET), b"other secret") is None


@given(ids, ids)
def test_a_signature_is_of_one_session_alone(mine: str, wanted: str) -> None:
    signature = session_key(mine, SECRET).rpartition(".")[2]
    encoded = session_key(wanted, SECRET).rpartition(".")[0]
    assert session_of(f"{encoded}.{signature}", SECRET) == (wanted if mine == wanted else None)


@given(ids, st.data())
def test_a_changed_signature_opens_nothing(session_id: str, data: st.DataObject) -> None:
    key = session_key(session_id, SECRET)
    position = data.draw(st.integers(key.rindex(".") + 1, len(key) - 1))
    changed = key[:position] + ("A" if key[position] != "A" else "B") + key[position + 1 :]
    assert session_of(changed, SECRET) is None


@pytest.mark.parametrize(
    "key",
    [
        "",
        "tito-",
        "tito-.",
        "tito-YQ",
        "tito-YQ.",
        "tito-Y.x",
        "tito-é.x",
        "tito-YQ.é",
        "tito-YQ.\udcff"[:8],
        "sk-YQ.abc",
        "tito-" + base64.urlsafe_b64encode(b"\xff\xfe").decode() + ".x",
        "." * 1000,
    ],
)
def test_what_is_no_key_opens_nothing_and_breaks_nothing(key: str) -> None:
    assert session_of(key, SECRET) is None


@pytest.mark.parametrize("token", ["sk-proj-abc", "EMPTY", "", "tito-without-dot", "my-tito-a.b"])
def test_other_api_keys_do_not_claim_to_be_one(token: str) -> None:
    assert not looks_like_key(token)


def test_a_key_is_the_same_for_every_replica() -> None:
    assert session_key("s1", b"k") == session_key("s1", b"k")
    assert session_key("s1", b"k").startswith("tito-czE.")

"""The signed header of a forwarded call."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from sidecar.replicas.hop import Hop, Signed, read_hop, write_hop

CALL = Signed("POST", b"/v1/chat/completions", b'{"model":"m"}')
SECRET = b"secret"
TEXT = st.text(min_size=1, max_size=20)


@given(session_id=TEXT, host=st.none() | TEXT)
def test_a_hop_comes_back_as_it_was(session_id: str, host: str | None) -> None:
    hop = Hop(session_id, host)
    value = write_hop(hop, CALL, SECRET)
    assert value.isascii()
    assert read_hop(value, CALL, SECRET) == hop


@given(session_id=TEXT, other=TEXT)
def test_it_is_good_for_its_own_call_and_secret_only(session_id: str, other: str) -> None:
    value = write_hop(Hop(session_id), CALL, SECRET)
    assert read_hop(value, CALL, SECRET + b"." + other.encode()) is None  # HMAC fills keys up with zeros
    for changed in (
        replace(CALL, method="GET"),
        replace(CALL, path=CALL.path + other.encode()),
        replace(CALL, body=CALL.body + other.encode()),
    ):
        assert read_hop(value, changed, SECRET) is None
    said, _, mac = value.partition(".")
    foreign = write_hop(Hop(other), CALL, b"another secret")
    assume(other != session_id)
    assert read_hop(f"{foreign.partition('.')[0]}.{mac}", CALL, SECRET) is None
    assert read_hop(said, CALL, SECRET) is None


@given(value=st.text(max_size=40))
def test_anything_else_is_no_hop(value: str) -> None:
    assert read_hop(value, CALL, SECRET) is None

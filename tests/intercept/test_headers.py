"""The headers that the interceptor and the gateway share."""

import pytest

from sidecar.intercept.headers import original_host, without_reserved


def test_our_own_family_is_removed_in_any_case_and_the_rest_keeps_its_order() -> None:
    fields = [(b"A", b"1"), (b"X-Tito-Session", b"2"), (b"x-tito-", b"3"), (b"x-titox", b"4"), (b"a", b"5")]
    assert without_reserved(fields) == ((b"A", b"1"), (b"x-titox", b"4"), (b"a", b"5"))


@pytest.mark.parametrize(
    ("scheme", "host", "port", "shown"),
    [
        ("https", "api.openai.com", 443, "api.openai.com"),
        ("http", "api.openai.com", 80, "api.openai.com"),
        ("http", "api.openai.com", 443, "api.openai.com:443"),
        ("https", "llm.internal", 8000, "llm.internal:8000"),
        ("https", "::1", 443, "[::1]"),
        ("https", "::1", 8000, "[::1]:8000"),
    ],
)
def test_the_original_host_shows_a_port_only_where_it_is_not_the_schemes_own(
    scheme: str, host: str, port: int, shown: str
) -> None:
    assert original_host(scheme, host, port) == shown

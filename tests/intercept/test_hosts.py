"""``--intercept-hosts``: exact destinations, whatever spelling a client uses for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.intercept.hosts import DEFAULT_HOSTS, canonical_host, parse_hosts


def test_the_default_hosts_are_allowed_on_the_https_and_http_ports_alone() -> None:
    hosts = parse_hosts(DEFAULT_HOSTS)
    for name in ("api.openai.com", "api.anthropic.com"):
        assert [hosts.allows(name, port) for port in (443, 80, 8443, 0)] == [True, True, False, False]


def test_an_entry_with_a_port_allows_that_port_alone() -> None:
    hosts = parse_hosts([" llm.internal:8000 "])
    assert [hosts.allows("llm.internal", port) for port in (8000, 443, 80)] == [True, False, False]
    assert hosts.names == ("llm.internal:8000",)


@pytest.mark.parametrize("spelling", ["API.OpenAI.com", "api.openai.com.", "ａpi.openai.com"])
def test_other_spellings_of_an_allowed_host_are_the_same_host(spelling: str) -> None:
    assert parse_hosts(["api.openai.com"]).allows(spelling, 443)


@pytest.mark.parametrize(
    "host",
    [
        "openai.com",
        "evil-api.openai.com",
        "api.openai.com.evil.com",
        "api.openai.com..",
        "api.openai.com:443",
        "api.openai.com/",
        "user@api.openai.com",
        "127.0.0.1",
        "::1",
        "",
        ".",
        "a" * 300,
        "\udcff",
        "api.openai.com\n",
        "*",
    ],
)
def test_hosts_that_only_look_alike_are_not_allowed(host: str) -> None:
    assert not parse_hosts(["api.openai.com"]).allows(host, 443)


@given(st.text())
def test_no_text_makes_the_decision_raise(host: str) -> None:
    assert parse_hosts(["api.openai.com"]).allows(host, 443) in (True, False)


@given(st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,10})(\.[a-z0-9_][a-z0-9_-]{0,10}){0,3}", fullmatch=True))
def test_a_canonical_host_is_its_own_canonical_form(host: str) -> None:
    assert canonical_host(canonical_host(host)) == canonical_host(host)


def test_addresses_match_however_they_are_written() -> None:
    hosts = parse_hosts(["[2001:DB8:0::1]:8000", "2001:db8::2", "10.0.0.1:9", "[2001:db8::3]"])
    assert hosts.allows("2001:db8::1", 8000)
    assert hosts.allows("2001:0db8:0:0::2", 443)
    assert hosts.allows("2001:db8::3", 80)
    assert hosts.allows("10.0.0.1", 9)
    assert not hosts.allows("10.0.0.1", 443)
    assert not hosts.allows("2001:db8::1", 443)


def test_an_international_name_matches_in_both_its_forms() -> None:
    hosts = parse_hosts(["bücher.example"])
    assert hosts.allows("xn--bcher-kva.example", 443)
    assert hosts.allows("BÜCHER.example", 443)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        " ",
        "https://api.openai.com",
        "api.openai.com/v1",
        "*.openai.com",
        "api.openai.com:",
        "api.openai.com:0",
        "api.openai.com:65536",
        "api.openai.com:https",
        "api.openai.com:²",
        "[::1",
        "[::1]8000",
        "1:2:3",
        "a b",
        "a" * 64 + ".com",
    ],
)
def test_an_entry_that_is_no_host_is_refused_with_its_value(entry: str) -> None:
    with pytest.raises(ValueError, match="--intercept-hosts entry") as error:
        parse_hosts(["api.openai.com", entry])
    assert repr(entry.strip()) in str(error.value)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ValueError, match="--intercept-hosts is empty"):
        parse_hosts([])

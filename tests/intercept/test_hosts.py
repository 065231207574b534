"""``--intercept-hosts``: exact destinations, whatever spelling a client uses for them."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.intercept.hosts import DEFAULT_HOSTS, HostList, Verdict, canonical_host, parse_rules
from sidecar.intercept.hosts import parse_hosts as parse


def parse_hosts(entries: Iterable[str]) -> HostList:
    return parse(entries, "--intercept-hosts")


def test_the_default_hosts_are_allowed_on_the_https_and_http_ports_alone() -> None:
    hosts = parse_hosts(DEFAULT_HOSTS)
    for name in ("api.openai.com", "api.anthropic.com"):
        assert [hosts.holds(name, port) for port in (443, 80, 8443, 0)] == [True, True, False, False]


def test_an_entry_with_a_port_allows_that_port_alone() -> None:
    hosts = parse_hosts([" llm.internal:8000 "])
    assert [hosts.holds("llm.internal", port) for port in (8000, 443, 80)] == [True, False, False]
    assert hosts.names == ("llm.internal:8000",)


@pytest.mark.parametrize("spelling", ["API.OpenAI.com", "api.openai.com.", "ａpi.openai.com"])
def test_other_spellings_of_an_allowed_host_are_the_same_host(spelling: str) -> None:
    assert parse_hosts(["api.openai.com"]).holds(spelling, 443)


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
    assert not parse_hosts(["api.openai.com"]).holds(host, 443)


@given(st.text())
def test_no_text_makes_the_decision_raise(host: str) -> None:
    assert parse_hosts(["api.openai.com"]).holds(host, 443) in (True, False)


@given(st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,10})(\.[a-z0-9_][a-z0-9_-]{0,10}){0,3}", fullmatch=True))
def test_a_canonical_host_is_its_own_canonical_form(host: str) -> None:
    assert canonical_host(canonical_host(host)) == canonical_host(host)


def test_addresses_match_however_they_are_written() -> None:
    hosts = parse_hosts(["[2001:DB8:0::1]:8000", "2001:db8::2", "10.0.0.1:9", "[2001:db8::3]"])
    assert hosts.holds("2001:db8::1", 8000)
    assert hosts.holds("2001:0db8:0:0::2", 443)
    assert hosts.holds("2001:db8::3", 80)
    assert hosts.holds("10.0.0.1", 9)
    assert not hosts.holds("10.0.0.1", 443)
    assert not hosts.holds("2001:db8::1", 443)


def test_an_international_name_matches_in_both_its_forms() -> None:
    hosts = parse_hosts(["bücher.example"])
    assert hosts.holds("xn--bcher-kva.example", 443)
    assert hosts.holds("BÜCHER.example", 443)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        " ",
        "https://api.openai.com",
        "api.openai.com/v1",
        "*.com",
        "*.127.0.0.1",
        "a.*.com",
        "*",
        "*:443",
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


def test_an_empty_list_of_llm_hosts_is_refused_and_one_of_allowed_hosts_is_not() -> None:
    with pytest.raises(ValueError, match="--intercept-hosts is empty"):
        parse_rules([])
    with pytest.raises(ValueError, match="--intercept-allow entry 'a b'"):
        parse_rules(["a"], ["a b"])
    assert parse_rules(["a"]).judge("b", 443) is Verdict.REFUSE


def test_a_wildcard_holds_names_below_it_and_not_itself() -> None:
    hosts = parse_hosts(["*.openai.azure.com", "*.internal.corp:8000"])
    for name in ("mine.openai.azure.com", "a.b.OpenAI.azure.com."):
        assert [hosts.holds(name, port) for port in (443, 80, 8000)] == [True, True, False]
    assert hosts.holds("llm.internal.corp", 8000)
    for name in (
        "openai.azure.com",
        "xopenai.azure.com",
        "openai.azure.com.evil.com",
        "10.0.0.1",
        "a..openai.azure.com",
    ):
        assert not hosts.holds(name, 443)


@pytest.mark.parametrize(
    "host",
    [
        "api.openai.com",
        "api.anthropic.com",
        "r.openai.azure.com",
        "r.services.ai.azure.com",
        "r.cognitiveservices.azure.com",
        "openrouter.ai",
        "api.deepseek.com",
        "generativelanguage.googleapis.com",
    ],
)
def test_the_providers_hosts_are_llm_hosts_by_default(host: str) -> None:
    assert parse_hosts(DEFAULT_HOSTS).holds(host, 443)


def test_a_host_on_both_lists_goes_to_the_gateway() -> None:
    rules = parse_rules(["api.openai.com"], ["*.openai.com", "pypi.org", "10.0.0.1:5432"])
    assert rules.judge("api.openai.com", 443) is Verdict.GATEWAY
    assert rules.judge("files.openai.com", 443) is Verdict.PASS
    assert rules.judge("pypi.org", 22) is Verdict.REFUSE
    assert rules.judge("10.0.0.1", 5432) is Verdict.PASS


def test_names_and_addresses_are_told_apart() -> None:
    hosts = parse_hosts(["b", "a:80", "10.0.0.1", "*.x.y", "[::1]:80"])
    assert (hosts.names_on(80), hosts.names_on(443)) == (["a", "b"], ["b"])

"""``--intercept`` specs: what they mean and what is refused at configuration."""

import pytest

from sidecar.intercept.spec import ListenSpec, format_address, parse_spec, parse_specs


@pytest.mark.parametrize(
    ("text", "spec", "shown", "mode"),
    [
        ("regular@8080", ListenSpec("127.0.0.1", 8080), "regular@127.0.0.1:8080", "regular@127.0.0.1:8080"),
        (" regular@0 ", ListenSpec("127.0.0.1", 0), "regular@127.0.0.1:0", "regular@127.0.0.1:0"),
        ("regular@0.0.0.0:81", ListenSpec("0.0.0.0", 81), "regular@0.0.0.0:81", "regular@0.0.0.0:81"),
        ("regular@[::1]:8080", ListenSpec("::1", 8080), "regular@[::1]:8080", "regular@::1:8080"),
    ],
)
def test_a_regular_spec_is_a_host_and_a_port(text: str, spec: ListenSpec, shown: str, mode: str) -> None:
    parsed = parse_spec(text)
    assert (parsed, str(parsed), parsed.mitmproxy_modes(ipv6=True)) == (spec, shown, [mode])


def test_a_transparent_spec_listens_on_both_loopback_addresses_where_there_are_two() -> None:
    spec = parse_spec("transparent@8081")
    assert (spec.mode, spec.host, spec.port, str(spec)) == (
        "transparent",
        "127.0.0.1",
        8081,
        "transparent@127.0.0.1:8081",
    )
    assert spec.mitmproxy_modes(ipv6=True) == ["transparent@127.0.0.1:8081", "transparent@::1:8081"]
    assert spec.mitmproxy_modes(ipv6=False) == ["transparent@127.0.0.1:8081"]
    assert parse_spec("transparent@0.0.0.0:1").mitmproxy_modes(ipv6=True) == ["transparent@0.0.0.0:1"]


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://api.openai.com", ("api.openai.com", 443)),
        ("http://LLM.internal/", ("llm.internal", 80)),
        ("http://[2001:DB8::1]:8000", ("2001:db8::1", 8000)),
    ],
)
def test_a_reverse_spec_stands_in_for_one_server(url: str, target: tuple[str, int]) -> None:
    spec = parse_spec(f"reverse:{url}@8086")
    assert (spec.mode, spec.port, spec.target) == ("reverse", 8086, target)
    shown = format_address(*target)
    assert spec.mitmproxy_modes(ipv6=True) == [f"reverse:http://{shown}@127.0.0.1:8086"]


@pytest.mark.parametrize(
    "url", ["", "api.openai.com", "ftp://h", "https://", "https://h/v1", "https://h?x", "http://u@h", "http://h:0"]
)
def test_a_reverse_spec_takes_no_path_and_no_other_scheme(url: str) -> None:
    with pytest.raises(ValueError, match="is no server; write https://HOST"):
        parse_spec(f"reverse:{url}@8086")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("regular", "expected regular@PORT"),
        ("transparent", "expected regular@PORT"),
        ("reverse@80", "expected regular@PORT"),
        ("transparent:x@80", "expected regular@PORT"),
        ("socks5@1080", "expected regular@PORT"),
        ("8080", "expected regular@PORT"),
        ("", "expected regular@PORT"),
        ("regular:x@8080", "expected regular@PORT"),
        ("regular@", "port ''"),
        ("regular@http", "port 'http'"),
        ("regular@65536", "port '65536'"),
        ("regular@-1", "port '-1'"),
        ("regular@²", "port '²'"),
        ("regular@:8080", "host is empty"),
        ("regular@::1:8080", "in brackets"),
    ],
)
def test_a_bad_spec_is_refused_with_the_flag_and_the_value(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="--intercept") as error:
        parse_spec(text)
    assert message in str(error.value)


def test_several_specs_keep_their_order_and_may_not_repeat_an_address() -> None:
    assert [spec.port for spec in parse_specs(["regular@2", "regular@1"])] == [2, 1]
    with pytest.raises(ValueError, match="listed twice"):
        parse_specs(["regular@8080", "regular@127.0.0.1:8080"])
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:8080 is listed twice"):
        parse_specs(["regular@8080", "transparent@8080"])


def test_addresses_are_written_as_in_urls() -> None:
    assert (format_address("h", 1), format_address("::1", 1)) == ("h:1", "[::1]:1")

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
    assert (parsed, str(parsed), parsed.mitmproxy_mode) == (spec, shown, mode)


@pytest.mark.parametrize("text", ["transparent@8081", "reverse:http://api.openai.com@8082", "transparent"])
def test_a_mode_of_a_later_version_is_named_as_not_supported(text: str) -> None:
    with pytest.raises(ValueError, match="not supported by this version") as error:
        parse_spec(text)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("regular", "expected regular@PORT"),
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


def test_addresses_are_written_as_in_urls() -> None:
    assert (format_address("h", 1), format_address("::1", 1)) == ("h:1", "[::1]:1")

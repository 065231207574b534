"""Settings: flags over `TITO_*` over YAML over defaults; what is wrong is named with its value and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
import typer.core
from typer.testing import CliRunner

from sidecar.cli import app
from sidecar.config import (
    Settings,
    SettingsError,
    default_state_dir,
    is_loopback,
    load_settings,
    split_address,
)
from sidecar.flags import with_settings_flags
from sidecar.intercept.hosts import DEFAULT_HOSTS

FIELDS = sorted(Settings.model_fields)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `TITO_*` of the machine that runs the tests."""
    import os

    for name in [name for name in os.environ if name.startswith("TITO_")]:
        monkeypatch.delenv(name)


def yaml_file(directory: Path, text: str) -> Path:
    path = directory / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(flags: dict[str, Any], config: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, config)
    return str(caught.value)


def serve_command() -> typer.core.TyperCommand:
    group = typer.main.get_command(app)
    command = group.get_command(None, "serve")  # type: ignore[attr-defined, arg-type]
    assert isinstance(command, typer.core.TyperCommand)
    return command


class TestPrecedence:
    SOURCES = (
        ("engine_url", "http://flag:1", "http://env:1", "http://yaml:1", "http://127.0.0.1:30000"),
        ("context_window", 11, 12, 13, None),
        ("max_body", "1KiB", "2KiB", "3KiB", 8 * 2**20),
        ("sampling_pin", "temperature=1", "temperature=2", "{temperature: 3}", {}),
        ("intercept_hosts", "flag", "env,env2", "[yaml]", list(DEFAULT_HOSTS)),
        ("train_off_policy_sampling", True, "true", "true", False),
        ("overflow_status", "413", "413", "413", 400),
        ("json_keepalive", "off", "off", "off", "on"),
        ("heartbeat_interval", "1", "2.5", "3", 15),
    )

    @pytest.mark.parametrize(("name", "flag", "env", "yaml", "default"), SOURCES, ids=[s[0] for s in SOURCES])
    def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        flag: Any,
        env: Any,
        yaml: Any,
        default: Any,
    ) -> None:
        seen = [getattr(load_settings({}), name)]
        config = yaml_file(tmp_path, f"{name}: {yaml}\n")
        seen.append(getattr(load_settings({}, config), name))
        monkeypatch.setenv(f"TITO_{name.upper()}", str(env))
        seen.append(getattr(load_settings({}, config), name))
        seen.append(getattr(load_settings({name: flag}, config), name))
        expected = [getattr(load_settings({name: value}), name) for value in (env, flag)]
        assert seen[0] == default
        assert seen[1] != default
        assert seen[2:] == expected
        if name not in ("train_off_policy_sampling", "overflow_status", "json_keepalive"):
            assert len({str(value) for value in seen}) == 4

    def test_settings_of_several_sources_are_joined(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TITO_SESSION_ID", "from env")
        config = yaml_file(tmp_path, "tokenizer: from yaml\nmax_body: 1GiB\n")
        settings = load_settings({"model_family": "qwen3"}, config)
        assert (settings.session_id, settings.tokenizer, settings.model_family) == (
            "from env",
            "from yaml",
            "qwen3",
        )
        assert settings.max_body == 2**30

    def test_one_loads_file_is_not_anothers(self, tmp_path: Path) -> None:
        assert load_settings({}, yaml_file(tmp_path, "tokenizer: t\n")).tokenizer == "t"
        assert load_settings({}).tokenizer is None

    def test_an_empty_file_sets_nothing(self, tmp_path: Path) -> None:
        assert load_settings({}, yaml_file(tmp_path, "")).model_dump() == load_settings({}).model_dump()


class TestDerived:
    def test_folders_follow_the_state_dir(self, tmp_path: Path) -> None:
        settings = load_settings({"state_dir": tmp_path})
        assert settings.ca_dir == tmp_path / "ca"
        assert settings.store == f"sqlite:///{tmp_path / 'tito.db'}"
        chosen = load_settings({"state_dir": tmp_path, "ca_dir": "/ca", "store": "sqlite:////db"})
        assert (chosen.ca_dir, chosen.store) == (Path("/ca"), "sqlite:////db")

    def test_the_state_dir_is_where_the_desktop_standard_puts_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
        assert default_state_dir() == Path("/xdg/tito-sidecar")
        assert load_settings({}).state_dir == Path("/xdg/tito-sidecar")
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setenv("HOME", "/home/me")
        assert default_state_dir() == Path("/home/me/.local/state/tito-sidecar")

    @pytest.mark.parametrize(
        ("listen", "auth"),
        [
            ("127.0.0.1:8800", "none"),
            ("127.1.2.3:1", "none"),
            ("localhost:1", "none"),
            ("[::1]:1", "none"),
            ("0.0.0.0:8800", "session-key"),
            (":8800", "session-key"),
            ("10.0.0.1:1", "session-key"),
        ],
    )
    def test_keys_are_needed_unless_only_this_machine_can_call(self, listen: str, auth: str) -> None:
        assert load_settings({"listen": listen}).data_auth == auth
        assert is_loopback(listen) == (auth == "none")
        assert load_settings({"listen": listen, "data_auth": "none"}).data_auth == "none"
        assert load_settings({"listen": listen, "data_auth": "session-key"}).data_auth == "session-key"


class TestValues:
    @pytest.mark.parametrize(
        ("text", "size"),
        [("2048", 2048), ("2048b", 2048), ("8MiB", 8 * 2**20), ("512 kib", 2**19), ("1GiB", 2**30), (4096, 4096)],
    )
    def test_sizes_are_bytes_or_binary_units(self, text: Any, size: int) -> None:
        assert load_settings({"max_body": text}).max_body == size

    def test_a_pin_is_names_and_numbers(self) -> None:
        pin = load_settings({"sampling_pin": "temperature=1.0, top_k=-1,max_new_tokens=+64"}).sampling_pin
        assert pin == {"temperature": 1.0, "top_k": -1, "max_new_tokens": 64}
        assert [type(value) for value in pin.values()] == [float, int, int]

    def test_lists_are_split_at_commas(self) -> None:
        assert load_settings({"intercept": "regular@1, regular@2,"}).intercept == ["regular@1", "regular@2"]
        assert load_settings({"intercept": ""}).intercept == []

    @pytest.mark.parametrize(
        ("address", "parts"),
        [
            ("127.0.0.1:80", ("127.0.0.1", 80)),
            ("[::1]:80", ("::1", 80)),
            (":80", ("0.0.0.0", 80)),
            ("name:0", ("name", 0)),
        ],
    )
    def test_addresses_have_a_host_and_a_port(self, address: str, parts: tuple[str, int]) -> None:
        assert split_address(address) == parts

    @pytest.mark.parametrize("address", ["", "host", "80", "host:", "host:x", "host:-1", "host:65536"])
    def test_what_is_no_address_is_refused(self, address: str) -> None:
        with pytest.raises(ValueError, match="is no address; write HOST:PORT"):
            split_address(address)


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("engine_url", "localhost:30000", "is no URL; write http://HOST:PORT"),
            ("listen", "8800", "is no address; write HOST:PORT"),
            ("control_listen", "h:x", "is no address; write HOST:PORT"),
            ("health_listen", "h", "is no address; write HOST:PORT"),
            ("match", "fuzzy", "'lenient' or 'exact'"),
            ("on_unstable_template", "ignore", "'refuse' or 'segment'"),
            ("special_tokens_in_content", "x", "'text' or 'control'"),
            ("overflow_status", "404", "400 or 413"),
            ("data_auth", "basic", "'none' or 'session-key'"),
            ("json_keepalive", "maybe", "'on' or 'off'"),
            ("context_window", "1", "greater than or equal to 2"),
            ("context_window", "many", "valid integer"),
            ("max_output_tokens", 0, "greater than or equal to 1"),
            ("max_body", "8 parsecs", "write bytes, or 512KiB, 8MiB, 1GiB"),
            ("max_body", "1b", "greater than or equal to 1024"),
            ("heartbeat_interval", "0", "greater than 0"),
            ("heartbeat_interval", "nan", "greater than 0"),
            ("retry_window", -1, "greater than or equal to 0"),
            ("engine_retries", 1.5, "valid integer"),
            ("sampling_pin", "temperature", "'temperature' is no name=value"),
            ("sampling_pin", "temperature=hot", "temperature is 'hot'; send a number"),
            ("sampling_pin", "bogus=1", "sampling_pin.bogus cannot be pinned; known names are"),
            ("sampling_pin", "max_new_tokens=0", "whole number of at least 1"),
            ("sampling_pin", [1], "valid dictionary"),
            ("routing_replay_shape", "layers=48", "write layers=N,topk=N and, if it is known, experts=N"),
            ("routing_replay_shape", "layers=48,topk=0", "each at least 1"),
            ("routing_replay_shape", "layers=48,topk=8,heads=2", "write layers=N,topk=N"),
            ("routing_replay_shape", "layers=2.5,topk=8", "valid integer"),
            ("train_off_policy_sampling", "perhaps", "valid boolean"),
        ],
    )
    def test_a_bad_value_is_named_with_its_flag_and_a_remedy(self, name: str, value: Any, words: str) -> None:
        [line] = refused({name: value}).splitlines()
        assert line.startswith(f"--{name.replace('_', '-')} is ")
        assert words in line

    def test_a_bad_value_of_the_environment_or_the_file_is_named_as_well(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TITO_MATCH", "fuzzy")
        assert refused({}) == "--match is 'fuzzy': Input should be 'lenient' or 'exact'"
        monkeypatch.delenv("TITO_MATCH")
        assert refused({}, yaml_file(tmp_path, "max_body: [1]\n")).startswith("--max-body is [1]: ")

    @pytest.mark.parametrize(
        ("flags", "named"),
        [
            ({"mask_nonlast_version_tokens": True}, "--mask-nonlast-version-tokens"),
            ({"max_version_span": 2}, "--max-version-span"),
            ({"partial_rollout": False}, "--no-partial-rollout"),
            (
                {"mask_nonlast_version_tokens": True, "max_version_span": 2},
                "--mask-nonlast-version-tokens and --max-version-span",
            ),
        ],
        ids=str,
    )
    def test_what_needs_versions_is_refused_where_none_are_recorded(
        self, flags: dict[str, Any], named: str
    ) -> None:
        secret = {"control_token": "424242"}
        message = refused({**flags, **secret, "record_token_versions": False})
        assert message == (
            "--no-record-token-versions leaves the version of every token unknown, which "
            f"{named} must know; leave recording on, or leave {named} out"
        )
        load_settings(flags)
        load_settings({"record_token_versions": False})

    @pytest.mark.parametrize("value", ["0", "-1", "some"])
    def test_a_span_of_versions_is_a_number_of_at_least_one(self, value: str) -> None:
        assert refused({"max_version_span": value}).startswith(f"--max-version-span is '{value}': ")

    def test_every_bad_value_has_a_line(self) -> None:
        assert len(refused({"match": "x", "listen": "x", "context_window": "x"}).splitlines()) == 3

    @pytest.mark.parametrize("name", ["engine_api_key", "engine_admin_key", "control_token", "session_secret"])
    def test_a_secret_is_never_printed(self, name: str, tmp_path: Path) -> None:
        message = refused({}, yaml_file(tmp_path, f"{name}: 424242\n"))
        assert message.startswith(f"--{name.replace('_', '-')} is not shown: ")
        assert "424242" not in message

    def test_an_unknown_key_of_the_file_is_named(self, tmp_path: Path) -> None:
        message = refused({}, yaml_file(tmp_path, "engine_urll: http://x:1\n"))
        assert message == "engine_urll is no setting; see tito-sidecar serve --help"

    @pytest.mark.parametrize("text", ["a: [", "- a\n", "a: !!python/object:os.system x\n"])
    def test_a_file_that_is_no_yaml_object_is_named(self, tmp_path: Path, text: str) -> None:
        config = yaml_file(tmp_path, text)
        assert refused({}, config).startswith(f"--config {config}: ")

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        for path in (tmp_path / "none.yaml", tmp_path):
            assert refused({}, path) == f"--config is {str(path)!r}; there is no such file"


class TestFlags:
    @pytest.mark.parametrize("name", FIELDS)
    def test_every_setting_has_a_description_and_a_flag(self, name: str) -> None:
        description = Settings.model_fields[name].description
        assert description
        [option] = [parameter for parameter in serve_command().params if parameter.name == name]
        assert f"--{name.replace('_', '-')}" in option.opts
        assert description in str(option.help)  # type: ignore[attr-defined]

    def test_there_are_no_other_flags(self) -> None:
        assert sorted(str(parameter.name) for parameter in serve_command().params) == sorted([*FIELDS, "config"])

    def read(self, *arguments: str) -> tuple[dict[str, Any], Path | None]:
        """What a command gets for a command line."""
        seen: list[tuple[dict[str, Any], Path | None]] = []
        program = typer.Typer()

        @program.command()
        @with_settings_flags
        def command(flags: dict[str, Any], config: Path | None) -> None:
            """Help of the command."""
            seen.append((flags, config))

        result = CliRunner().invoke(program, list(arguments))
        assert result.exit_code == 0, result.output
        return seen[0]

    def test_only_what_was_given_is_passed_on(self) -> None:
        assert self.read() == ({}, None)
        assert self.read("--listen", ":1", "--config", "c.yaml") == ({"listen": ":1"}, Path("c.yaml"))

    def test_a_switch_can_be_turned_off(self) -> None:
        assert self.read("--train-off-policy-sampling")[0] == {"train_off_policy_sampling": True}
        assert self.read("--no-train-off-policy-sampling")[0] == {"train_off_policy_sampling": False}

    def test_a_listener_may_be_named_more_than_once(self) -> None:
        flags, _ = self.read("--intercept", "regular@1", "--intercept", "regular@2")
        assert load_settings(flags).intercept == ["regular@1", "regular@2"]

    def test_every_flag_of_the_command_line_is_understood(self) -> None:
        flags, _ = self.read(
            *("--overflow-status", "413", "--max-body", "1MiB", "--sampling-pin", "temperature=1"),
            *("--context-window", "4096", "--json-keepalive", "off", "--heartbeat-interval", "2"),
        )
        settings = load_settings(flags)
        assert (settings.overflow_status, settings.max_body, settings.context_window) == (413, 2**20, 4096)
        assert (settings.sampling_pin, settings.json_keepalive) == ({"temperature": 1}, "off")
        assert settings.heartbeat_interval == 2

    def test_the_help_shows_defaults_choices_and_units(self) -> None:
        shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
        assert "--match lenient|exact" in shown
        assert "[http://127.0.0.1:30000]" in shown
        assert "--engine-retries N" in shown
        assert "--drain-seconds SECONDS" in shown

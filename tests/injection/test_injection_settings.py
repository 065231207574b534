"""The webhook's settings: flags over `TITO_*` over YAML; what is wrong stops it at its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sidecar.cli import app
from sidecar.config import SettingsError
from sidecar.injection.certificate import ServingCertificate
from sidecar.injection.settings import load_injection_settings
from tests.injection.certificates import make_certificate

GIVEN = {"tls_cert": "tls.crt", "tls_key": "tls.key"}
SECRET = "a secret of the cluster"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("TITO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TITO_SESSION_SECRET", SECRET)


def config(folder: Path, **settings: Any) -> Path:
    path = folder / "webhook.yaml"
    path.write_text(yaml.safe_dump({"image": "tito:1", **settings}))
    return path


def test_flags_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(tmp_path, listen="127.0.0.1:1", mode="transparent", engine_url="")
    loaded = load_injection_settings(GIVEN, path)
    assert (loaded.listen, loaded.mode, loaded.engine_url) == ("127.0.0.1:1", "transparent", None)
    monkeypatch.setenv("TITO_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("TITO_MODE", "base_url")
    loaded = load_injection_settings(GIVEN, path)
    assert (loaded.listen, loaded.mode) == ("127.0.0.1:2", "base_url")
    assert load_injection_settings({**GIVEN, "listen": "127.0.0.1:3"}, path).listen == "127.0.0.1:3"
    assert loaded.resources["limits"] == {"memory": "2Gi"}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"mode": "magic"}, "mode is 'magic'"),
        ({"engine_url": "sglang"}, "engine_url is 'sglang': 'sglang' is no URL"),
        ({"secret": "A B"}, "secret is 'A B'"),
        ({"settings": {"contextwindow": 1}}, "contextwindow is no setting"),
        ({"settings": {"listen": ":1"}}, "listen is set by the injection"),
        ({"resources": {"limits": {"memory": "2Gb"}}}, "there is no unit 'Gb'"),
        ({"resources": ["x"]}, "resources is"),
        ({"listen": "8443"}, "--listen is '8443'"),
        ({"imgae": "x"}, "imgae is no setting; see tito-sidecar inject-webhook --help"),
        ({"image": ""}, "image is ''"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_injection_settings(GIVEN, config(tmp_path, **wrong))
    assert named in str(caught.value)


def test_what_is_missing_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TITO_SESSION_SECRET")
    with pytest.raises(SettingsError) as caught:
        load_injection_settings({}, None)
    assert "--tls-cert is missing; give --tls-cert FILE or TITO_TLS_CERT" in str(caught.value)
    assert "session_secret is missing; give TITO_SESSION_SECRET" in str(caught.value)
    assert "image is missing; give TITO_IMAGE, or image in the file of --config" in str(caught.value)
    with pytest.raises(SettingsError, match="there is no such file"):
        load_injection_settings({}, tmp_path / "none.yaml")


def test_the_session_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TITO_SESSION_SECRET", "too short")
    with pytest.raises(SettingsError) as caught:
        load_injection_settings(GIVEN, config(tmp_path))
    assert "session_secret is not shown" in str(caught.value)
    assert "too short" not in str(caught.value)


def test_files_that_cannot_serve_are_refused_at_the_start(tmp_path: Path) -> None:
    crt, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    with pytest.raises(SettingsError, match=r"--tls-cert is '.*tls.crt': No such file"):
        ServingCertificate(crt, key)
    crt.write_bytes(make_certificate("one")[0])
    key.write_bytes(make_certificate("two")[1])
    with pytest.raises(SettingsError, match="cannot serve"):
        ServingCertificate(crt, key)
    crt.write_text("no certificate")
    with pytest.raises(SettingsError, match="cannot serve"):
        ServingCertificate(crt, key)


def test_a_certificate_that_vanishes_for_a_moment_serves_on(tmp_path: Path) -> None:
    crt, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    content = make_certificate("one")
    crt.write_bytes(content[0])
    key.write_bytes(content[1])
    serving = ServingCertificate(crt, key)
    assert serving.look() is None
    crt.unlink()
    with pytest.raises(SettingsError):
        serving.look()
    crt.write_bytes(content[0])
    assert serving.look() is None, "what is served is there again"


def test_the_command_names_its_flags() -> None:
    shown = CliRunner().invoke(app, ["inject-webhook", "--help"]).output
    for flag in ("--listen", "--tls-cert", "--tls-key", "--config"):
        assert flag in shown

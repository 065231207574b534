"""``tito-sidecar ca bundle|env``, and what programs make of the files."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12
from typer.testing import CliRunner

from sidecar.cli import app
from sidecar.intercept.authority import AuthorityError, open_authority
from sidecar.intercept.trust import TRUSTSTORE, TRUSTSTORE_PASSWORD


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_bundle_makes_the_ca_and_prints_certificates_alone(tmp_path: Path) -> None:
    out = run("ca", "bundle", "--ca-dir", str(tmp_path / "ca"))
    assert out == (tmp_path / "ca" / "ca-bundle.pem").read_text()
    assert out.endswith((tmp_path / "ca" / "ca-cert.pem").read_text())
    assert "PRIVATE KEY" not in out
    assert run("ca", "bundle", "--ca-dir", str(tmp_path / "ca")) == out, "the CA is made once"


def test_bundle_writes_a_folder_that_agents_may_see_without_the_key(tmp_path: Path) -> None:
    target = tmp_path / "shared" / "trust.pem"
    assert run("ca", "bundle", "--state-dir", str(tmp_path / "s"), "--output", str(target)) == f"{target}\n"
    assert target.read_bytes() == (tmp_path / "s" / "ca" / "ca-bundle.pem").read_bytes()
    assert sorted(path.name for path in target.parent.iterdir()) == [TRUSTSTORE, "trust.pem"]
    assert b"PRIVATE" not in target.read_bytes()
    assert [path.stat().st_mode & 0o777 for path in target.parent.iterdir()] == [0o644, 0o644]


def test_env_in_a_shell_sets_the_variables_of_every_runtime(tmp_path: Path) -> None:
    ca_dir = tmp_path / "a dir's"
    script = run("ca", "env", "--ca-dir", str(ca_dir))
    shown = subprocess.run(
        ["sh", "-c", f"{script}\nenv -0"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    found = dict(line.partition("=")[::2] for line in shown.stdout.split("\0") if line)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"):
        assert found[name] == str(ca_dir / "ca-bundle.pem")
    assert f"-Djavax.net.ssl.trustStore={ca_dir / TRUSTSTORE} " in found["JAVA_TOOL_OPTIONS"]
    for runtime in ("Python", "Go", "curl", "Node", "Java"):
        assert runtime in script


def test_env_can_be_told_where_the_agent_sees_the_bundle_and_then_makes_nothing(tmp_path: Path) -> None:
    given = ("--ca-dir", str(tmp_path / "ca"), "--at", "/etc/tito-ca/ca-bundle.pem")
    variables = json.loads(run("ca", "env", *given, "--format", "json"))
    assert variables["SSL_CERT_FILE"] == "/etc/tito-ca/ca-bundle.pem"
    assert run("ca", "env", *given, "--format", "docker").splitlines() == [
        f"{name}={value}" for name, value in variables.items()
    ]
    assert not (tmp_path / "ca").exists()


def test_the_java_trust_store_holds_our_certificate_and_the_public_roots(tmp_path: Path) -> None:
    found = open_authority(tmp_path)
    store = (tmp_path / TRUSTSTORE).read_bytes()
    key, _, certificates = pkcs12.load_key_and_certificates(store, TRUSTSTORE_PASSWORD.encode())
    assert key is None
    assert len(certificates) > 100
    keytool = shutil.which("keytool")
    if keytool is None:
        pytest.skip(
            "needs keytool of a Java runtime to see whether Java reads it: apt-get install default-jre-headless"
        )
    listed = subprocess.run(
        [keytool, "-list", "-rfc", "-keystore", tmp_path / TRUSTSTORE, "-storepass", TRUSTSTORE_PASSWORD],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "trustedCertEntry" in listed.stdout
    ours = "".join(found.certificate.read_text().split("\n")[1:-2])
    assert ours in "".join(listed.stdout.split("\n"))


def test_a_bundle_that_cannot_be_written_names_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AuthorityError, match=r"--ca-bundle '.*file/x\.pem'"):
        open_authority(tmp_path / "ca", tmp_path / "file" / "x.pem")


def test_a_changed_bundle_is_written_again_and_an_unchanged_one_is_left(tmp_path: Path) -> None:
    found = open_authority(tmp_path / "ca", tmp_path / "shared.pem")
    assert found.bundle == tmp_path / "shared.pem"
    before = found.bundle.stat().st_mtime_ns
    open_authority(tmp_path / "ca", tmp_path / "shared.pem")
    assert found.bundle.stat().st_mtime_ns == before
    found.bundle.write_text("old")
    open_authority(tmp_path / "ca", tmp_path / "shared.pem")
    assert found.bundle.read_bytes() == (tmp_path / "ca" / "ca-bundle.pem").read_bytes()

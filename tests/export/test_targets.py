"""Where an export goes, and what is said when it cannot: S3-compatible storage, paths, wrong flags, progress."""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import s3fs
from moto.server import ThreadedMotoServer
from rich.console import Console

from sidecar.export.errors import ExportError
from sidecar.export.formats import format_of
from sidecar.export.progress import progress
from sidecar.export.target import Target, without_credentials
from tests.export.conftest import Cli, finalized, save
from tests.support.command import refused


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """An S3-compatible server on loopback."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """An empty bucket, its server and credentials in the environment as S3's own tools read them."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    name = f"bucket-{tmp_path.name}".replace("_", "-").lower()[:60]
    storage().mkdir(name)
    return name


def storage() -> Any:
    return s3fs.S3FileSystem(skip_instance_cache=True)


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_an_export_to_s3_is_repeatable_and_in_whole_objects(
    command: Cli, tmp_path: Path, url: str, bucket: str, form: str
) -> None:
    flags = ("export", "--store", url, "--to", f"s3://{bucket}/a/data", "--format", form, "--part-size", "4096")
    save(url, [finalized(f"s{number}") for number in range(6)], tokens=300)
    done = command(*flags)
    assert (done.code, done.err) == (0, "")
    names = sorted(storage().ls(f"{bucket}/a/data", detail=False))
    assert len(names) > 1
    assert command(*flags).out.startswith("0 new segments")
    save(url, [finalized("new", at=1)])
    assert command(*flags).out.startswith("1 new segments")
    now = sorted(storage().ls(f"{bucket}/a/data", detail=False))
    assert now[:-1] == names
    if form == "parquet":
        found = [pyarrow.parquet.read_table(storage().open(name)).column("uid").to_pylist() for name in now]
        assert sorted(itertools.chain(*found)) == ["new/0", *(f"s{number}/0" for number in range(6))]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("tito-export-")], "no file is left here"


def test_an_upload_that_fails_leaves_no_object(
    command: Cli, url: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(url, [finalized("a")])

    async def fails(*arguments: Any, **options: Any) -> None:
        raise PermissionError("Access Denied")

    with monkeypatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "_put_file", fails)
        refused(
            command("export", "--store", url, "--to", f"s3://{bucket}/data"), "Access Denied", "allow this user"
        )
    assert storage().ls(bucket, detail=False) == []
    assert command("export", "--store", url, "--to", f"s3://{bucket}/data").code == 0


def test_missing_credentials_and_buckets_are_named_without_secrets(
    command: Cli, url: str, bucket: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(url, [finalized("a")])
    refused(
        command("export", "--store", url, "--to", "s3://no-such-bucket/x"),
        "s3://no-such-bucket/x", "create the bucket or folder first",
    )  # fmt: skip
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    refused(command("export", "--store", url, "--to", f"s3://{bucket}/x"), "AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    done = command(
        "export", "--store", url, "--to", f"s3://{bucket}/x", "--to-option", "key=an-id",
        "--to-option", "secret=hush-hush", "--to-option", f"endpoint_url={endpoint}",
    )  # fmt: skip
    assert done.code == 0
    assert "hush" not in done.out + done.err


def test_wrong_flags_are_one_line_each(command: Cli, tmp_path: Path, url: str) -> None:
    save(url, [finalized("a")])
    here, out = ("export", "--store", url), str(tmp_path / "out")
    refused(command(*here, "--to", "nosuch://x/y"), "nosuch://x/y", "s3://BUCKET/FOLDER")
    refused(command(*here, "--to", out, "--format", "csv"), "--format is 'csv'", "parquet or jsonl")
    refused(command(*here, "--to", out, "--since", "yesterday"), "--since is 'yesterday'", "24h")
    refused(command(*here, "--to", out, "--part-size", "big"), "--part-size is 'big'")
    refused(command(*here, "--to", out, "--part-size", "1"), "--part-size is '1'", "4096")
    refused(command(*here, "--to", out, "--to-option", "my-secret"), "--to-option number 1")
    refused(command("export", "--store", f"sqlite:///{tmp_path}/none.db", "--to", out), "there is no such file")
    assert not (tmp_path / "none.db").exists()
    assert command(*here).code == 2, "--to is needed"
    assert command(*here, "--to", out, "--frmat", "csv").code == 2


def test_a_place_that_cannot_be_written_is_named(command: Cli, tmp_path: Path, url: str) -> None:
    save(url, [finalized("a")])
    file = tmp_path / "file"
    file.touch()
    refused(command("export", "--store", url, "--to", file / "x"), f"--to is {file}/x", "cannot be written")
    refused(command("export", "--store", url, "--to", "/proc/nothing"), "cannot be written", "/proc/nothing")


def test_a_folder_of_another_format_or_of_other_files_is_refused(command: Cli, tmp_path: Path, url: str) -> None:
    save(url, [finalized("a")])
    out = tmp_path / "out"
    flags = ("export", "--store", url, "--to", out)
    command(*flags)
    refused(command(*flags, "--format", "jsonl"), "format parquet", "another folder")
    [part] = [path for path in out.iterdir() if path.name.startswith("part-")]
    part.write_bytes(b"something else")
    refused(command(*flags), part.name, "no part of an export")
    part.unlink()
    command(*flags, "--format", "jsonl")
    [part] = [path for path in out.iterdir() if path.suffix == ".jsonl"]
    for text in ("[]\n", "{}\n", "{\n"):
        part.write_text(text)
        refused(command(*flags, "--format", "jsonl"), part.name, "line 1")
    (out / "README.md").write_text("mine")
    part.unlink()
    assert command(*flags).code == 0, "files that are no parts do not matter"


@pytest.mark.parametrize("missing", ["pyarrow", "fsspec"])
def test_without_the_extra_its_name_is_said(
    command: Cli, tmp_path: Path, url: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(url, [finalized("a")])
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    refused(
        command("export", "--store", url, "--to", tmp_path / "out"), missing, "pip install 'tito-sidecar[export]'"
    )


def test_a_storage_whose_package_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dropboxdrivefs", None)
    with pytest.raises(ExportError, match=r"dropbox:// needs another package \(.*dropboxdrivefs"):
        Target("dropbox://folder/x", format_of("jsonl"), {})


def test_storage_without_atomic_uploads_gets_parts_by_renaming(tmp_path: Path) -> None:
    from fsspec.implementations.dirfs import DirFileSystem

    done: list[tuple[str, ...]] = []

    class Remote(DirFileSystem):  # type: ignore[misc]
        protocol = "sftp"

        def put_file(self, here: str, there: str, **options: Any) -> None:
            done.append(("put", there))
            super().put_file(here, there, **options)

        def mv(self, one: str, other: str, **options: Any) -> None:
            done.append(("mv", one, other))
            super().mv(one, other, **options)

    target = Target(str(tmp_path), format_of("jsonl"), {})
    target._fs, target._folder, target._is_local = Remote(str(tmp_path)), "data", False
    with target.spool() as spool:
        spool.write_text("{}\n")
        name = target.put(spool)
    assert done == [("put", f"data/.{name}"), ("mv", f"data/.{name}", f"data/{name}")]
    assert (tmp_path / "data" / name).read_text() == "{}\n"
    assert not spool.exists()


def test_urls_are_shown_without_credentials() -> None:
    assert without_credentials("s3://key:secret@bucket/x?token=1") == "s3://bucket/x"
    assert without_credentials("s3://bucket/x@y/z") == "s3://bucket/x@y/z"
    assert without_credentials("/a/b") == "/a/b"


def test_progress_is_plain_lines_without_a_terminal_and_a_bar_on_one() -> None:
    times = iter([0.0, 5.0, 11.0, 11.0, 12.0])
    plain = io.StringIO()
    with progress(Console(file=plain), 30, lambda: next(times)) as report:
        for sessions in (10, 20, 30):
            report(sessions, sessions * 2, 1)
    assert plain.getvalue() == "20 of 30 sessions, 40 new segments, 1 parts\n"
    shown = io.StringIO()
    with progress(Console(file=shown, force_terminal=True, width=80), 30) as report:
        report(30, 60, 2)
    assert "30/30" in shown.getvalue()
    assert "60 new segments, 2 parts" in shown.getvalue()

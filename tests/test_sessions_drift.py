"""`tito-sidecar sessions drift`: the report on a stored session, beside a running sidecar and without one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
from rich.console import Console
from tokenizers import Tokenizer

from sidecar.session_tools.drift import SessionDrift, session_drift
from sidecar.session_tools.drift_view import print_drift
from sidecar.session_tools.tokenizers import NamedCodec, Tokenizers
from sidecar.store import open_store
from sidecar.store.protocol import SessionRow, StoredSession, StoreError
from sidecar.tito.codec import Codec
from sidecar.tito.records import StepRecord
from tests.fake_sglang import Reply
from tests.support.chat import ask, completion, follow
from tests.support.command import Done, run_command
from tests.support.npm import npm_tokenizer
from tests.support.running import Running
from tests.tito.builders import byte_tokenizer, step

ROOT = Path(__file__).resolve().parents[1]
SMALL = byte_tokenizer("<end>", vocab=["ab"], merges=[("a", "b")])
A, B, AB, NEWLINE, END = (SMALL.token_to_id(name) for name in ("a", "b", "ab", "Ċ", "<end>"))


def run(*arguments: str | Path, **environment: str) -> Done:
    """`tito-sidecar sessions ARGUMENTS`, in a thread: tests have an event loop, and so has the command."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TITO_")}
    with mock.patch.dict(os.environ, clean | environment, clear=True), ThreadPoolExecutor(1) as pool:
        return pool.submit(run_command, "sessions", *arguments).result()


def run_offline(*arguments: str | Path) -> Done:
    """The same in a process of its own, which does not ask the hub."""
    done = subprocess.run(
        [sys.executable, "-m", "sidecar.cli", "sessions", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
        env={**os.environ, "COLUMNS": "80", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def drift_json(*arguments: str | Path, **environment: str) -> dict[str, Any]:
    """What `drift --json` prints."""
    shown = run("drift", *arguments, "--json", **environment)
    assert shown.code == 0, shown.err
    parsed: dict[str, Any] = json.loads(shown.out)
    return parsed


def refused(shown: Done, *words: str) -> None:
    """Exit code 2, nothing on the output, one line that holds `words`."""
    assert shown.code == 2, shown.out + shown.err
    assert shown.out == ""
    assert "Traceback" not in shown.err
    for word in words:
        assert word in shown.err


def row(session_id: str = "s", state: Any = "open", **changes: Any) -> SessionRow:
    """A session's row."""
    values = {"instance_id": None, "run_id": None, "metadata": {}, "sampling": {}, "created_at": 1.0}
    return SessionRow(session_id=session_id, state=state, **(values | {"updated_at": 1.0} | changes))


def _contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


async def save(path: Path, steps: Sequence[StepRecord], session: SessionRow | None = None) -> str:
    """A store with one session at `path`; its URL."""
    url = f"sqlite:///{path}"
    store = open_store(url)
    await store.start()
    await store.save_session(session or row())
    for record in steps:
        await store.save_step(record, {})
    await store.close()
    return url


def small_drift(*steps: StepRecord, **changes: Any) -> SessionDrift:
    """The report on a session sampled with `SMALL`."""
    named = NamedCodec("small", Codec(SMALL))
    return session_drift(StoredSession(row(**changes), list(steps)), lambda record: named)


@pytest.fixture(scope="module")
def deepseek_dir() -> Path:
    return npm_tokenizer("deepseek_v3")


async def test_the_public_example_is_reported_from_a_stored_session(tmp_path: Path, deepseek_dir: Path) -> None:
    end, user, assistant = 1, 128803, 128804
    url = await save(
        tmp_path / "tito.db",
        [
            step("a", context_ids=[0, user, 260, assistant], output_ids=[68249, 23582, end]),
            step("b", "a", sequence=1, context_ids=[user, 260, assistant], output_ids=[19983, end]),
        ],
    )
    report = drift_json("s", "--store", url, "--tokenizer", deepseek_dir)
    [first, second] = report["steps"]
    assert first["stretches"] == [
        {
            "position": 0,
            "text": "大大的一块",
            "sampled": [{"id": 68249, "text": "大大的"}, {"id": 23582, "text": "一块"}],
            "encoded": [{"id": 19983, "text": "大大"}, {"id": 110697, "text": "的一块"}],
        }
    ]
    assert second["stretches"] == []
    assert report["totals"] == {
        "turns": 2,
        "turns_affected": 1,
        "tokens_sampled": 5,
        "tokens_changed": 2,
        "logprobs_misaligned": 2,
        "tokens_trained": 5,
        "trained_tokens_affected": 2,
    }
    shown = run("drift", "s", "--store", url, "--tokenizer", deepseek_dir)
    assert shown.code == 0
    assert [line.split() for line in shown.out.splitlines() if "大" in line or "块" in line] == [
        ["1", "0", '"大大的"', "68249", '"大大"', "19983"],
        ['"一块"', "23582", '"的一块"', "110697"],
    ]
    assert ["changed", "by", "re-tokenising", "1", "of", "2", "replies"] in [
        line.split() for line in shown.out.splitlines()
    ]


async def test_a_session_is_reported_while_the_sidecar_that_writes_it_runs(
    sidecar: Running, qwen3_dir: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(qwen3_dir / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    newline, split = encode("\n"), [*encode(" he"), *encode("llo")]
    outputs = [[*newline, *encode("Well,"), *split, *encode(" there.")], encode("Fine."), [*split]]
    sidecar.engine.replies.extend(Reply(ids=ids) for ids in outputs)
    body = ask()
    for _ in range(2):
        answer = completion(await sidecar.chat("s", body)).choices[0].message.model_dump(exclude_none=True)
        body = follow(body, answer, "Go on.")
    await sidecar.sidecar.registry._sessions["s"].flush()  # the mark of its delivery comes later
    state = tmp_path / "state"
    report = await asyncio.to_thread(drift_json, "s", "--state-dir", state)

    assert report["state"] == "open"
    assert report["tokenizers"] == [{"name": str(qwen3_dir), "sha256": sidecar.sidecar.model.tokenizer_sha256}]
    assert report["warnings"] == []
    first, second = report["steps"]
    sampled = len(outputs[0]) + 1  # and the stop token
    assert first["stretches"][0]["position"] == -1, "the newline of the prompt and the sampled one are one token"
    assert [token["id"] for token in first["stretches"][0]["encoded"]] == encode("\n\n")
    assert [token["id"] for token in first["stretches"][1]["sampled"]] == split
    assert [token["id"] for token in first["stretches"][1]["encoded"]] == encode(" hello")
    assert first["tokens_sampled"] == first["logprobs_misaligned"] == sampled
    assert first["tokens_changed"] == 1 + len(split)
    assert second["tokens_changed"] == second["logprobs_misaligned"] == 0
    assert report["totals"]["trained_tokens_affected"] == sampled
    assert report["totals"]["tokens_trained"] == sampled + len(outputs[1]) + 1

    completion(await sidecar.chat("s", body))
    sidecar.engine.assert_i1(session="s")
    later = await asyncio.to_thread(drift_json, "s", "--state-dir", state)
    assert [one["tokens_changed"] > 0 for one in later["steps"]] == [True, False, True]


async def test_reading_changes_nothing_in_the_store(tmp_path: Path, deepseek_dir: Path) -> None:
    path = tmp_path / "tito.db"
    url = await save(path, [step("a", output_ids=[68249, 23582, 1])])
    before = _contents(tmp_path)
    drift_json("s", "--store", url, "--tokenizer", deepseek_dir)
    assert _contents(tmp_path) == before
    assert list(before) == ["tito.db"]


async def test_settings_come_from_the_environment_and_the_file_too(tmp_path: Path, deepseek_dir: Path) -> None:
    await save(tmp_path / "state" / "tito.db", [step("a", output_ids=[68249, 23582, 1])])
    config = tmp_path / "tito.yaml"
    config.write_text(json.dumps({"tokenizer": str(deepseek_dir), "state_dir": str(tmp_path / "nowhere")}))
    report = drift_json("s", "--config", config, TITO_STATE_DIR=str(tmp_path / "state"))
    assert report["totals"]["turns"] == 1
    assert [one["name"] for one in report["tokenizers"]] == [str(deepseek_dir)]


async def test_wrong_use_is_refused_with_one_line(tmp_path: Path, deepseek_dir: Path, qwen3_dir: Path) -> None:
    await save(tmp_path / "tito.db", [step("a", output_ids=[68249, 23582, 1])])
    here = ("--state-dir", tmp_path)
    refused(run("drift", "s", *here), "step a", "'./model'", "no such directory", "--tokenizer PATH_OR_ID")
    refused(run("drift", "other", *here, "--tokenizer", deepseek_dir), "'other' is not in the store")
    refused(run("drift", "s", *here, "--tokenizer", qwen3_dir), str(qwen3_dir), "stop id 1", "the sidecar served")
    refused(run("drift", "s", *here, "--tokenizer", tmp_path), "tokenizer.json")
    refused(
        run_offline("drift", "s", *here, "--tokenizer", "no/such-model"), "'no/such-model'", "no such directory"
    )
    refused(run("drift", "s", "--store", "mysql://x/y", "--tokenizer", deepseek_dir), "mysql")
    refused(run("drift", "s", "--config", tmp_path / "none.yaml"), "there is no such file")
    refused(run("drift"), "ID")
    refused(run("drift", "s", "--tokeniser", deepseek_dir), "--tokeniser")


def test_a_store_that_does_not_exist_is_not_made(tmp_path: Path, deepseek_dir: Path) -> None:
    absent = tmp_path / "absent"
    refused(run("drift", "s", "--state-dir", absent, "--tokenizer", deepseek_dir), "there is no such file")
    assert not absent.exists()
    other = tmp_path / "other.db"
    other.touch()
    refused(run("drift", "s", "--store", f"sqlite:///{other}", "--tokenizer", deepseek_dir), "no store of tito")
    assert other.read_bytes() == b""


def test_sessions_alone_lists_its_commands() -> None:
    shown = run("--help")
    assert shown.code == 0
    assert "drift" in shown.out


def test_steps_without_a_reply_are_counted_and_left_out() -> None:
    report = small_drift(
        step("a", context_ids=[END], output_ids=[A, B, END]),
        step("b", "a", sequence=1, context_ids=[END], output_ids=[A, B], state="aborted", reply=b"", stop_id=None),
        step("c", "a", sequence=None, context_ids=[END], output_ids=[A], state="detached", reply=b"", stop_id=None),
    )
    assert [turn.reply.step_id for turn in report.turns] == ["a"]
    assert report.without_reply == 2


def test_only_what_trains_counts_as_trained() -> None:
    report = small_drift(
        step("a", context_ids=[END], output_ids=[A, B, END]),
        step("b", "a", sequence=1, context_ids=[END], output_ids=[A, B, END], untrainable="off_policy_sampling"),
    )
    assert [turn.reply.trained for turn in report.turns] == [True, False]
    assert report.totals.logprobs_misaligned == 6
    assert report.totals.trained_tokens_affected == 3


def test_a_session_without_a_step_has_an_empty_report() -> None:
    report = small_drift()
    assert report.turns == ()
    assert report.totals.turns == report.totals.tokens_sampled == 0


def test_a_discarded_session_is_refused() -> None:
    with pytest.raises(StoreError, match="was discarded"):
        small_drift(state="discarded")


def test_the_table_fits_80_columns_and_shows_what_cannot_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    escape = next(index for index in range(SMALL.get_vocab_size()) if SMALL.decode([index]) == "\x1b")
    spelled = [SMALL.token_to_id(letter) for letter in "<end>"]
    report = small_drift(
        step("a", context_ids=[END], output_ids=[escape, *spelled, NEWLINE, *spelled, *[A, B, NEWLINE] * 30, END]),
        session_id="x" * 100,
    )
    print_drift(Console(width=80, highlight=False), report)
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "\x1b" not in shown
    assert '"<" ' in shown and '"<end>" ' in shown
    assert "... and 12 more; --json lists all." in shown


def saved(directory: Path, tokenizer: Tokenizer) -> dict[str, str]:
    """A tokenizer's directory, and what a step sampled with it records."""
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    return {"tokenizer": str(directory), "tokenizer_sha256": Codec(tokenizer).sha256}


class TestTokenizers:
    UNKNOWN: ClassVar[dict[str, Any]] = {"tokenizer": None, "tokenizer_sha256": None}

    def test_each_reply_is_read_with_the_tokenizer_that_it_recorded(self, tmp_path: Path) -> None:
        small = saved(tmp_path / "small", SMALL)
        plain = byte_tokenizer("<end>")
        end = plain.token_to_id("<end>")
        other = saved(tmp_path / "plain", plain)
        tokenizers = Tokenizers(None)
        report = session_drift(
            StoredSession(
                row(),
                [
                    step("a", context_ids=[END], output_ids=[A, B, END], **small),
                    step(
                        "b", "a", sequence=1, context_ids=[end], output_ids=[A, B, end], segment_reason="x", **other
                    ),
                    step("c", "b", sequence=2, context_ids=[end], output_ids=[A, B, end], **other),
                ],
            ),
            tokenizers.of,
        )
        assert [turn.reply.changed for turn in report.turns] == [2, 0, 0]
        assert [one.name for one in report.tokenizers] == [small["tokenizer"], other["tokenizer"]]
        assert report.turns[1].tokenizer is report.turns[2].tokenizer, "read once"
        assert report.warnings == []

    async def test_one_that_has_changed_in_its_place_is_refused_with_both_hashes(self, tmp_path: Path) -> None:
        recorded = saved(tmp_path / "model", SMALL)
        await save(tmp_path / "tito.db", [step("a", context_ids=[END], output_ids=[A, B, END], **recorded)])
        byte_tokenizer("<end>", vocab=["ba"], merges=[("b", "a")]).save(str(tmp_path / "model" / "tokenizer.json"))
        now = Codec(Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))).sha256
        shown = run("drift", "s", "--state-dir", tmp_path)
        refused(shown, "step a", recorded["tokenizer"], recorded["tokenizer_sha256"], now, "--tokenizer PATH_OR_ID")

    async def test_the_one_that_was_asked_for_is_used_and_the_mismatch_is_said(self, tmp_path: Path) -> None:
        recorded = saved(tmp_path / "model", SMALL)
        given = saved(tmp_path / "given", byte_tokenizer("<end>", vocab=["ba"], merges=[("b", "a")]))
        steps = [
            step("a", context_ids=[END], output_ids=[A, B, END], **recorded),
            step("b", "a", sequence=1, context_ids=[END], output_ids=[B, A, END], **self.UNKNOWN),
        ]
        await save(tmp_path / "tito.db", steps)
        here = ("--state-dir", tmp_path, "--tokenizer", given["tokenizer"])
        report = drift_json("s", *here)
        differs, unknown = report["warnings"]
        assert differs.startswith("1 of 2 replies were sampled with another tokenizer")
        for told in (recorded, given):
            assert told["tokenizer"] in differs
            assert told["tokenizer_sha256"][:16] in differs
        assert unknown.startswith("1 of 2 replies do not say which tokenizer sampled them")
        assert [one["tokenizer"] for one in report["steps"]] == [given["tokenizer"]] * 2
        assert [one["recorded_tokenizer"] for one in report["steps"]] == [recorded["tokenizer"], None]
        assert [one["tokens_changed"] for one in report["steps"]] == [0, 2]
        shown = run("drift", "s", *here)
        assert shown.code == 0
        assert "Beware: 1 of 2 replies were sampled with another" in " ".join(shown.out.split())

    def test_a_step_of_an_older_version_needs_the_name_of_its_tokenizer(self) -> None:
        with pytest.raises(StoreError, match=r"step a does not say which .* --tokenizer PATH_OR_ID"):
            Tokenizers(None).of(step("a", **self.UNKNOWN))

    @pytest.mark.parametrize(
        ("recorded", "own"), [(UNKNOWN, "another one: "), ({}, r"another one, './model' of sha256 k: ")]
    )
    def test_one_that_certainly_is_another_is_refused(
        self, tmp_path: Path, recorded: dict[str, Any], own: str
    ) -> None:
        given = Tokenizers(saved(tmp_path / "small", SMALL)["tokenizer"])
        with pytest.raises(StoreError, match=f"{own}id 5000 is beyond its vocabulary"):
            given.of(step("a", context_ids=[END], output_ids=[5000], stop_id=None, **recorded))
        with pytest.raises(StoreError, match=f"{own}the stop id {A} is 'a' in it, no control token"):
            given.of(step("a", context_ids=[], output_ids=[A], **recorded))
        assert given.of(step("a", context_ids=[], output_ids=[], stop_id=None, **recorded)).codec.vocab_size > 256

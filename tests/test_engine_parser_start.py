"""`--tool-call-parser engine`, `--reasoning-parser engine` at start-up: given in any way or refused in a line."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sidecar.app import Sidecar
from sidecar.config import SettingsError, load_settings
from tests.fake_sglang import FakeSGLang, faults
from tests.support.running import engine_for, running_sidecar, settings_for


async def refused(engine: FakeSGLang, tmp_path: Path, **settings: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        async with running_sidecar(engine, tmp_path / "state", **settings):
            pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["tool_call_parser", "reasoning_parser"])
def test_flag_variable_and_file_name_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"{name}: engine\n", encoding="utf-8")
    assert getattr(load_settings({}, file), name) == "engine"
    assert getattr(load_settings({name: "engine"}), name) == "engine"
    monkeypatch.setenv(f"TITO_{name.upper()}", "engine")
    assert getattr(load_settings({}), name) == "engine"
    assert getattr(load_settings({name: "none"}), name) == "none"


def test_both_at_once_are_refused_before_the_engine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TITO_TOOL_CALL_PARSER", "engine")
    with pytest.raises(
        SettingsError, match=r"--reasoning-parser is 'engine': .* a step asks the engine once at most"
    ):
        load_settings({"reasoning_parser": "engine"})


@pytest.mark.parametrize("flag", ["tool-call-parser", "reasoning-parser"])
async def test_an_engine_that_names_no_parser_is_refused(flag: str, qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine:
        said = await refused(engine, tmp_path, **{flag.replace("-", "_"): "engine"})
    assert f"--{flag} is 'engine', but the engine names no parser of its own" in said
    assert f"start SGLang with --{flag} NAME, or set --{flag} to auto, none or a name here" in said


@pytest.mark.parametrize(
    ("flag", "path"), [("tool-call-parser", "/parse_function_call"), ("reasoning-parser", "/separate_reasoning")]
)
async def test_a_name_that_does_not_work_at_the_endpoint_is_refused(
    flag: str, path: str, qwen3_dir: Path, tmp_path: Path
) -> None:
    async with engine_for(qwen3_dir, parsers=("nope", "nope")) as engine:
        said = await refused(engine, tmp_path, **{flag.replace("-", "_"): "engine"})
        [question] = engine.recorder.calls_to(path)
    assert question.body["text"] == "Hello."
    assert f"--{flag} is 'engine', but --engine-url {engine.url} cannot be asked" in said
    assert f"POST {path} with the parser 'nope': Internal Server Error" in said


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (faults.HttpError(404, {"detail": "Not Found"}), "Not Found"),  # a router
        (faults.HttpError(200, {"object": "list"}), "without a list of calls"),
        (faults.HtmlBody(200), "no JSON"),
    ],
)
async def test_a_server_without_the_endpoint_is_refused(
    fault: faults.Fault, reason: str, qwen3_dir: Path, tmp_path: Path
) -> None:
    async with engine_for(qwen3_dir, parsers=(None, "okapi")) as engine:
        engine.parsing.faults.append(fault)
        said = await refused(engine, tmp_path, tool_call_parser="engine")
    assert reason in said
    assert "an SGLang server, not a router" in said


async def test_an_engine_that_goes_away_while_it_is_checked_is_waited_for(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir, parsers=(None, "okapi")) as engine:
        engine.parsing.faults.append(faults.DropConnection())
        async with running_sidecar(engine, tmp_path / "state", tool_call_parser="engine") as running:
            assert running.sidecar.model.parsers.formats.calls_name == "engine"
        assert len(engine.recorder.calls_to("/parse_function_call")) == 2


async def test_the_engines_name_is_waited_for_although_all_else_is_given(qwen3_dir: Path, tmp_path: Path) -> None:
    given = {"tokenizer": str(qwen3_dir), "context_window": 4096, "tool_call_parser": "engine"}
    async with engine_for(qwen3_dir, parsers=(None, "okapi")) as engine:
        await engine.down()
        sidecar = Sidecar(load_settings(settings_for(engine.url, tmp_path / "state", **given)))
        starting = asyncio.create_task(sidecar.__aenter__())
        done, _ = await asyncio.wait({starting}, timeout=1.5)
        assert not done
        await engine.up()
        await starting
        try:
            engine_parser = sidecar.model.parsers.formats.engine
            assert engine_parser is not None
            assert engine_parser.name == "okapi"
        finally:
            await sidecar.__aexit__()


async def test_the_engines_key_is_sent_with_the_question(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir, parsers=("okapi", None), api_key="right", admin_key="admin") as engine:
        settings = {"reasoning_parser": "engine", "engine_api_key": "right", "engine_admin_key": "admin"}
        async with running_sidecar(engine, tmp_path / "state", **settings):
            pass
        [question] = engine.recorder.calls_to("/separate_reasoning")
    assert question.status == 200

"""Routing replay is refused at start-up where it could not work, with what to do about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sidecar.config import SettingsError
from tests.routing_replay.rows import SETTINGS, SHAPE, asked, assert_rows, only_segment
from tests.support.chat import user
from tests.support.conversation import Conversation
from tests.support.running import engine_for, running_sidecar

MOE = {"num_hidden_layers": SHAPE[0], "num_experts_per_tok": SHAPE[1], "num_experts": SHAPE[2]}


def model_with(directory: Path, config: dict[str, Any] | None, source: Path) -> Path:
    """The tokenizer's files beside a config.json."""
    shutil.copytree(source, directory)
    if config is not None:
        (directory / "config.json").write_text(json.dumps({"eos_token_id": 151_645, **config}))
    return directory


async def test_an_engine_that_returns_no_experts_is_refused(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine:
        with pytest.raises(SettingsError, match="start SGLang with --enable-return-routed-experts"):
            async with running_sidecar(engine, tmp_path, **SETTINGS):
                pass


@pytest.mark.parametrize("config", [None, {"num_hidden_layers": 28}], ids=["no config", "a dense model"])
async def test_a_model_whose_shape_nothing_tells_is_refused(
    qwen3_dir: Path, tmp_path: Path, config: dict[str, Any] | None
) -> None:
    directory = model_with(tmp_path / "model", config, qwen3_dir)
    async with engine_for(directory, experts=SHAPE) as engine:
        with pytest.raises(SettingsError, match="--routing-replay-shape layers=48,topk=8,experts=128"):
            async with running_sidecar(engine, tmp_path / "state", use_rollout_routing_replay=True):
                pass


@pytest.mark.parametrize("config", [MOE, {"text_config": MOE}], ids=["text model", "with a vision part"])
async def test_the_shape_comes_from_the_models_config(
    qwen3_dir: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    directory = model_with(tmp_path / "model", config, qwen3_dir)
    async with (
        engine_for(directory, experts=SHAPE) as engine,
        running_sidecar(engine, tmp_path / "state", use_rollout_routing_replay=True) as running,
    ):
        told = (await running.control.get("/integration/capabilities")).json()
        assert (told["routing_replay"], told["engine"]["returns_routed_experts"]) == (True, True)
        await Conversation(running, "s").say(user("Hi"), reply="Hello.")
        assert asked(engine.requests[0]) == 0
        assert_rows(await only_segment(running, "s"))


async def test_a_shape_that_was_given_wins_over_the_config(qwen3_dir: Path, tmp_path: Path) -> None:
    directory = model_with(tmp_path / "model", {**MOE, "num_hidden_layers": 99}, qwen3_dir)
    async with (
        engine_for(directory, experts=SHAPE) as engine,
        running_sidecar(engine, tmp_path / "state", **SETTINGS) as running,
    ):
        await Conversation(running, "s").say(user("Hi"), reply="Hello.")
        assert_rows(await only_segment(running, "s"))


async def test_an_engine_that_does_not_say_is_asked_all_the_same(
    qwen3_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A sidecar that starts before its engine learns from the replies."""
    async with engine_for(qwen3_dir, experts=SHAPE) as engine:
        await engine.down()
        async with running_sidecar(
            engine, tmp_path, tokenizer=str(qwen3_dir), context_window=4096, **SETTINGS
        ) as running:
            assert "does not say whether it returns routed experts" in caplog.text
            await engine.up()
            await Conversation(running, "s").say(user("Hi"), reply="Hello.")
            assert_rows(await only_segment(running, "s"))
            told = (await running.control.get("/integration/capabilities")).json()
            assert told["engine"]["returns_routed_experts"] is True

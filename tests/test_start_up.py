"""How a sidecar starts, or says in one line why it does not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from sidecar.app import Sidecar
from sidecar.config import SettingsError, load_settings
from tests.support.running import engine_for, settings_for

ROOT = Path(__file__).resolve().parents[1]


async def test_a_wrong_engine_key_ends_the_start_and_names_the_flag(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir, api_key="right") as engine:
        settings = load_settings(settings_for(engine.url, tmp_path, engine_api_key="wrong"))
        with pytest.raises(SettingsError, match="--engine-api-key"):
            async with Sidecar(settings):
                pass


async def test_a_server_that_is_no_engine_ends_the_start(qwen3_dir: Path, tmp_path: Path) -> None:
    async with engine_for(qwen3_dir) as engine:
        settings = load_settings(settings_for(f"{engine.url}/elsewhere", tmp_path))
        with pytest.raises(SettingsError, match="404"):
            async with Sidecar(settings):
                pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "nowhere"], "--listen is 'nowhere'"),
        (["--engine-url", "localhost:1"], "--engine-url is 'localhost:1'"),
        (["--store", "mysql://x", "--state-dir", "STATE"], "use sqlite:///PATH"),
        (["--intercept", "socks5@1", "--engine-url", "ENGINE", "--state-dir", "STATE", "--listen", ":0",
          "--control-listen", "127.0.0.1:0"], "expected regular@PORT, transparent@PORT or reverse:URL@PORT"),
        (["--model-family", "klingon", "--engine-url", "ENGINE", "--state-dir", "STATE"], "klingon"),
        (["--config", "missing.yaml"], "there is no such file"),
    ],
)  # fmt: skip
async def test_wrong_flags_are_one_line_and_exit_code_2(
    arguments: list[str], said: str, qwen3_dir: Path, tmp_path: Path
) -> None:
    async with engine_for(qwen3_dir) as engine:
        given = [part.replace("ENGINE", engine.url).replace("STATE", str(tmp_path)) for part in arguments]
        code, output = await _serve(given)
    assert code == 2, output
    assert said in output
    assert "Traceback" not in output


async def test_a_signal_ends_a_sidecar_that_still_waits_for_its_engine(tmp_path: Path) -> None:
    serving = await _start(["--engine-url", "http://127.0.0.1:9", "--state-dir", str(tmp_path)])
    assert serving.stderr is not None
    line = await asyncio.wait_for(serving.stderr.readline(), 60)
    assert b"waiting for the engine (--engine-url)" in line
    serving.send_signal(signal.SIGTERM)
    await asyncio.wait_for(serving.communicate(), 30)
    assert serving.returncode == 0


async def _serve(arguments: list[str]) -> tuple[int | None, str]:
    serving = await _start(arguments)
    _, output = await asyncio.wait_for(serving.communicate(), 60)
    return serving.returncode, output.decode()


async def _start(arguments: list[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sidecar.cli", "serve", *arguments, cwd=ROOT, env={**os.environ},
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip

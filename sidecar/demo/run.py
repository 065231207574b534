"""`tito-sidecar demo`: engine, sidecar, an unmodified agent and a weight update, on one machine without a GPU.

Engine and sidecar listen on free loopback ports of this process; the agent is a process of its own. A trainer is
played by the control-plane client: it pauses in the middle of a reply, has the engine name new weights, resumes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
from rich.console import Console

from sidecar.app import Sidecar
from sidecar.config import default_state_dir, load_settings
from sidecar.demo.report import print_report
from sidecar.demo.sample import DemoSample
from sidecar.local_engine import LocalEngine, build_app, default_threads, prepare_model
from sidecar.web.listener import Listener
from trainer_hooks.client import AsyncControlClient
from trainer_hooks.slime.samples import expand_segments_to_samples

_PAUSE_FROM_TURN = 3
_PAUSE_AFTER_TOKENS = 12
_UPDATE_SECONDS = 1.0


class DemoError(Exception):
    """The demo did not do what it shows."""


async def run_demo(output: Path, turns: int, seed: int) -> None:
    """Run it and write `segments.jsonl` and `samples.jsonl` to `output`. Raises `DemoError` if a part failed."""
    console = Console(highlight=False, soft_wrap=True)
    started = time.monotonic()
    files = await asyncio.to_thread(prepare_model, default_state_dir() / "engine")
    engine = LocalEngine(files, seed=seed, threads=default_threads())
    await engine.start()
    listener = Listener(build_app(engine), "127.0.0.1:0", "the demo's engine")
    with tempfile.TemporaryDirectory() as state:
        try:
            await listener.start()
            settings = load_settings(
                {
                    "engine_url": listener.url,
                    "listen": "127.0.0.1:0",
                    "control_listen": "127.0.0.1:0",
                    "state_dir": state,
                    "data_auth": "session-key",
                }
            )
            async with Sidecar(settings) as sidecar:
                console.print(f"engine   {listener.url}   SmolLM2-135M on {engine.slots} slots")
                console.print(f"sidecar  {sidecar.gateway.url}   control {sidecar.control.url}")
                async with AsyncControlClient(sidecar.control.url, sidecar.control_token) as control:
                    await _converse(console, control, listener.url, sidecar, turns, output)
        finally:
            await listener.stop()
            await engine.stop()
    console.print(
        f"\nDone in {time.monotonic() - started:.0f} s. Written: {output}/segments.jsonl, {output}/samples.jsonl"
    )


async def _converse(
    console: Console, control: AsyncControlClient, engine_url: str, sidecar: Sidecar, turns: int, output: Path
) -> None:
    session = await control.open_session(
        instance_id="demo", sampling={"temperature": 1.0, "top_p": 1.0, "top_k": -1}, run_id="demo"
    )
    session_id = session["session_id"]
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sidecar.demo.agent", str(turns),
        env={**os.environ, "OPENAI_BASE_URL": session["base_url"], "OPENAI_API_KEY": session["api_key"]},
    )  # fmt: skip
    update = asyncio.create_task(_update_weights(console, control, engine_url, session_id))
    code = await agent.wait()
    if not update.done():
        update.cancel()
        raise DemoError("the agent ended before the pause in the middle of a reply")
    paused = update.result()
    if code:
        raise DemoError(f"the agent ended with exit code {code}")
    view = await control.view_session(session_id)
    await control.finalize_session(session_id, reward=1.0)
    segments = (await control.read_trajectory(session_id=session_id, arrays="json"))["data"]
    _write(output / "segments.jsonl", segments)
    samples = expand_segments_to_samples(DemoSample(index=0, group_index=0, prompt="demo"), segments)
    _write(output / "samples.jsonl", [sample.to_json() for sample in samples])
    console.print()
    print_report(console, view, segments, sidecar.model.codec)
    console.print(f"paused in the middle of {paused}; the agent noticed nothing")


async def _update_weights(console: Console, control: AsyncControlClient, engine_url: str, session_id: str) -> str:
    """What a trainer does around a weight update; where it came in, in words."""
    interrupted = None
    while interrupted is None:
        await _reply_in_progress(control, session_id)
        pause = await control.pause_rollout(reason="weight update")
        if not pause["quiesced"]:
            raise DemoError(f"the engine did not stop: {pause}")
        interrupted = _interrupted(await control.view_session(session_id))
        if interrupted is None:  # the reply ended by itself just then
            await control.resume_rollout(pause_id=pause["pause_id"])
    console.print("\n    [dim]-- paused: the engine gets new weights --[/dim]")
    async with httpx.AsyncClient(trust_env=False) as client:
        body = {"new_version": "demo-weights-2", "abort_all_requests": False}
        (await client.post(f"{engine_url}/update_weight_version", json=body)).raise_for_status()
    await asyncio.sleep(_UPDATE_SECONDS)
    await control.resume_rollout(pause_id=pause["pause_id"])
    console.print("    [dim]-- resumed: the same reply goes on --[/dim]")
    return interrupted


async def _reply_in_progress(control: AsyncControlClient, session_id: str) -> None:
    """Until a reply of a later turn is well under way."""
    while True:
        steps: list[dict[str, Any]] = (await control.view_session(session_id))["steps"]
        sampled = max((step["output_tokens"] for step in steps if step["state"] == "running"), default=0)
        if len(steps) >= _PAUSE_FROM_TURN and sampled >= _PAUSE_AFTER_TOKENS:
            return
        await asyncio.sleep(0.02)


def _interrupted(view: Mapping[str, Any]) -> str | None:
    running = [step for step in view["steps"] if step["state"] == "running"]
    return f"reply {len(view['steps'])}, after {running[0]['output_tokens']} of its tokens" if running else None


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))

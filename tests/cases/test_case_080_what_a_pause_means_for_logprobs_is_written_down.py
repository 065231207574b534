"""Case 80: users could not tell whether the KV cache is computed anew after a resume.

`docs/operating.md` has a row for each of the engine's modes; what the rows say of the requests is tested here.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.support.chat import Held, ask, completion
from tests.support.running import engine_for, running_sidecar

DOCS = Path(__file__).resolve().parents[2] / "docs" / "operating.md"


def test_each_mode_has_a_row_that_tells_of_cache_and_logprobs() -> None:
    section = DOCS.read_text().split("## Pausing around a weight update")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    for mode in ("abort", "drain", "hold"):
        assert any(row.startswith(f"| `{mode}`") for row in rows), mode
    header = next(row for row in rows if "KV cache" in row)
    assert "logprobs" in header
    for mode in ("abort", "retract", "in_place"):
        assert any(f"`{mode}`" in row for row in rows[rows.index(header) :]), mode


@pytest.mark.parametrize(("engine_mode", "requests"), [("abort", 2), ("retract", 1), ("in_place", 1)])
async def test_after_abort_the_engine_reads_all_again_and_after_the_others_it_was_never_asked(
    qwen3_dir: Path, tmp_path: Path, engine_mode: str, requests: int
) -> None:
    async with (
        engine_for(qwen3_dir, weight_version="1") as engine,
        running_sidecar(engine, tmp_path / "state") as running,
        httpx.AsyncClient(base_url=engine.url, timeout=60) as trainer,
    ):
        held = Held()
        engine.replies.append(held.reply())
        call = asyncio.ensure_future(running.chat("s", ask()))
        first = await held.reached(engine)
        mode = "abort" if engine_mode == "abort" else "hold"
        await running.post("/v1/rollout/pause", {"mode": mode})
        await trainer.post("/pause_generation", json={"mode": engine_mode})
        body = {"model_path": str(qwen3_dir), "weight_version": "2", "flush_cache": False}
        assert (await trainer.post("/update_weights_from_disk", json=body)).status_code == 200
        await trainer.post("/continue_generation", json={})
        held.open.set()
        await running.post("/v1/rollout/resume")
        assert completion(await call).choices[0].message.content == held.text
        assert len(engine.requests) == requests
        if requests == 2:
            assert engine.requests[1].input_ids == first.input_ids + first.output_ids

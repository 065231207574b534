"""What is exported loads with `datasets` and is what `/trajectory/read` gives, beside a running sidecar."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sidecar.export.formats import format_of
from sidecar.export.progress import progress
from sidecar.export.run import Totals, export
from sidecar.export.target import Target
from sidecar.store.listing import SessionFilter
from tests.fake_sglang import Reply
from tests.routing_replay.rows import ENGINE, SETTINGS
from tests.support.chat import ask, call_text, completion, follow, tool, user
from tests.support.running import Running, engine_for, running_sidecar

SECRETS = {"control_token": "control-token-of-the-test", "session_secret": "session-secret-of-the-test"}


@pytest.fixture
async def running(qwen3_dir: Path, tmp_path: Path) -> AsyncIterator[Running]:
    """A sidecar with sessions of all sorts: tools, reasoning, a branch, label and reward, and one that is open."""
    async with engine_for(qwen3_dir) as engine, running_sidecar(engine, tmp_path / "state", **SECRETS) as running:
        await running.open("rich", instance_id="i", run_id="r", metadata={"a": [1, None]}, sampling={"top_p": 1.0})
        body = ask(messages=[{"role": "system", "content": "S"}, user("Hi 🎉")], tools=[tool()])
        said = ["<think>\nhm\n</think>\n\nLook.\n" + call_text(at=1), "Done. 🎉", "Another end."]
        engine.replies.extend(Reply(text=text) for text in said)
        answer = completion(await running.chat("rich", body)).choices[0].message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "a door"}
        for text in ("One way", "Other way"):
            turn = follow(body, answer, text)
            turn["messages"].insert(-1, result)
            completion(await running.chat("rich", turn))
        await running.finalize("rich", label={"right": True}, reward=0.5)
        for name, reward in (("plain", {"a": 1, "b": 0.25}), ("unlabelled", None)):
            engine.replies.append(Reply(text=f"I am {name}."))
            completion(await running.chat(name, ask()))
            await running.finalize(name, reward=reward)
        engine.replies.append(Reply(text="Still here."))
        completion(await running.chat("open", ask()))
        yield running


async def exported(running: Running, folder: Path, form: str) -> Totals:
    settings = running.sidecar.settings
    assert settings.store is not None
    chosen = SessionFilter(("finalized",))
    target, show = Target(str(folder), format_of(form), {}), partial(progress, Console(quiet=True))
    return await export(settings.store, target, format_of(form), chosen, part_bytes=4096, show=show)


def loaded(kind: str, folder: Path, cache: Path) -> list[dict[str, Any]]:
    """The rows as `datasets` reads them."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import load_dataset

    dataset = load_dataset(kind, data_dir=str(folder), split="train", cache_dir=str(cache))
    return list(dataset)


def segment_of(row: dict[str, Any]) -> dict[str, Any]:
    """The segment as `/trajectory/read` sends it, out of a row."""
    same = (
        "uid", "session_id", "trajectory_id", "segment_index", "segment_count", "tokens", "full_loss_mask",
        "full_logprobs", "full_versions", "finish_reason", "timestamp",
    )  # fmt: skip
    experts = json.loads(row["routed_experts_json"])
    return {
        **{name: row[name] for name in same},
        "instance_id": row["instance_id"] or None,
        "messages": json.loads(row["messages_json"]),
        "tools": json.loads(row["tools_json"]),
        "label": json.loads(row["label_json"]),
        "reward": json.loads(row["reward_json"]),
        "extra_info": json.loads(row["extra_info_json"]),
        **({} if experts is None else {"routed_experts": experts}),
    }


@pytest.mark.parametrize(("form", "kind"), [("parquet", "parquet"), ("jsonl", "json")])
async def test_datasets_loads_what_the_trainer_reads(
    running: Running, tmp_path: Path, form: str, kind: str
) -> None:
    out = tmp_path / "out"
    totals = await exported(running, out, form)
    assert (totals.sessions, totals.segments, totals.failed) == (3, 4, [])
    rows = await asyncio.to_thread(loaded, kind, out, tmp_path / "cache")
    expected = [segment for name in ("rich", "plain", "unlabelled") for segment in await running.segments(name)]
    assert len(expected) == 4
    by_uid = {segment["uid"]: segment for segment in expected}
    assert {row["uid"]: segment_of(row) for row in rows} == by_uid
    for row in rows:
        info = by_uid[row["uid"]]["extra_info"]
        assert (row["run_id"] or None, row["is_anchor"]) == (info["run_id"], info["is_anchor"])
        assert row["finalization_id"] == row["revision"]
    if form == "parquet":
        assert [row["reward"] for row in rows if row["is_anchor"]] == [0.5, None, None]


async def test_no_secret_is_written(running: Running, tmp_path: Path) -> None:
    key = (await running.open("open"))["api_key"]
    await exported(running, tmp_path / "out", "jsonl")
    text = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    assert "I am plain." in text
    for secret in (*SECRETS.values(), key, key.partition(".")[2]):
        assert secret not in text


async def test_the_store_is_as_it_was_and_the_session_goes_on(running: Running, tmp_path: Path) -> None:
    before = await running.sidecar._store.counts()
    await exported(running, tmp_path / "out", "parquet")
    assert await running.sidecar._store.counts() == before
    assert (await running.post("/trajectory/read", {"session_id": "rich"}))["drained"] is False
    running.engine.replies.append(Reply(text="Yes."))
    completion(await running.chat("open", ask("And?")))


async def test_rows_of_routing_replay_are_exported_too(qwen3_dir: Path, tmp_path: Path) -> None:
    async with (
        engine_for(qwen3_dir, **ENGINE) as engine,
        running_sidecar(engine, tmp_path / "state", **SETTINGS) as running,
    ):
        body = ask()
        for text in ("One.", "Two."):
            engine.replies.append(Reply(text=text))
            answer = completion(await running.chat("s", body)).choices[0].message.model_dump(exclude_none=True)
            body = follow(body, answer, "Go on.")
        [segment] = await running.segments("s")
        assert segment["routed_experts"]["shape"][0] == len(segment["tokens"]) - 1
        await exported(running, tmp_path / "out", "jsonl")
        [line] = (tmp_path / "out").glob("part-*.jsonl")
        assert segment_of(json.loads(line.read_text())) == segment

"""`sessions finalize`, `discard`, `rm` and `wait-drained`, at a running sidecar and beside it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sidecar.session_tools.draining import wait_drained
from sidecar.store import open_store
from tests.export.conftest import finalized, save
from tests.fake_sglang import Reply
from tests.support.chat import Held, ask, completion
from tests.support.command import Done, refused, run_command
from tests.support.running import Running
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TITO_CONTROL_URL", "TITO_CONTROL_TOKEN", "TITO_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)


async def run(*arguments: str | Path) -> Done:
    return await asyncio.to_thread(run_command, "sessions", *arguments)


async def call(running: Running, session: str) -> None:
    running.engine.replies.append(Reply(text="Yes."))
    completion(await running.chat(session, ask()))


def reach(running: Running, tmp_path: Path) -> tuple[str | Path, ...]:
    """Flags that reach the sidecar of the fixture, with the token of its state directory."""
    return ("--control-url", running.sidecar.control.url, "--state-dir", tmp_path / "state")


async def test_finalize_closes_the_session_in_the_sidecar(sidecar: Running, tmp_path: Path) -> None:
    await call(sidecar, "s")
    done = await run("finalize", "s", "--reward", "0.5", "--label", "good", *reach(sidecar, tmp_path))
    assert (done.code, done.out, done.err) == (0, "s: finalized; 1 segments of 1 steps\n", "")
    [segment] = await sidecar.segments("s")
    assert (segment["reward"], segment["label"]) == (0.5, "good")
    again = await run("finalize", "s", "--json", *reach(sidecar, tmp_path))
    assert json.loads(again.out) == await sidecar.finalize("s")


async def test_finalize_says_what_it_aborted(sidecar: Running, tmp_path: Path) -> None:
    await call(sidecar, "s")
    held = Held()
    sidecar.engine.replies.append(held.reply())
    running = asyncio.create_task(sidecar.chat("s", ask("And?")))
    await held.reached(sidecar.engine)
    done = await run("finalize", "s", "--timeout", "0", *reach(sidecar, tmp_path))
    assert "1 of its steps were aborted and do not train" in done.out
    assert (await running).status_code == 409


async def test_discard_forgets_the_session_in_the_sidecar(sidecar: Running, tmp_path: Path) -> None:
    await call(sidecar, "s")
    done = await run("discard", "s", "never", *reach(sidecar, tmp_path))
    assert done.out == "s: discarded\nnever: there was nothing to discard\n"
    assert (await sidecar.chat("s", ask())).status_code == 409
    done = await run("discard", "s", "--json", *reach(sidecar, tmp_path))
    assert json.loads(done.out) == {
        "session_id": "s", "success": True, "session_removed": False, "segments_removed": 0
    }  # fmt: skip


async def test_the_token_and_the_url_come_from_the_environment_too(
    sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await call(sidecar, "s")
    monkeypatch.setenv("TITO_CONTROL_URL", sidecar.sidecar.control.url)
    monkeypatch.setenv("TITO_CONTROL_TOKEN", sidecar.sidecar.control_token)
    assert (await run("finalize", "s")).code == 0


async def test_what_the_sidecar_refuses_is_one_line(sidecar: Running, tmp_path: Path) -> None:
    refused(await run("finalize", "never", *reach(sidecar, tmp_path)), "'never' is unknown", "HTTP 404")
    await sidecar.open("empty")
    refused(await run("finalize", "empty", *reach(sidecar, tmp_path)), "has no steps")
    url = ("--control-url", sidecar.sidecar.control.url)
    refused(
        await run("finalize", "s", *url, "--state-dir", tmp_path),
        "control-token",
        "TITO_CONTROL_TOKEN",
        "--state-dir",
    )
    (tmp_path / "control-token").write_text("wrong\n")
    refused(await run("finalize", "s", *url, "--state-dir", tmp_path), "needs its token")
    refused(
        await run("discard", "s", "--control-url", "127.0.0.1:1", "--state-dir", tmp_path),
        "must start with http://",
    )


async def test_a_sidecar_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_hooks.client.RETRY_DELAYS", ())
    (tmp_path / "control-token").write_text("t\n")
    url = "http://127.0.0.1:9"
    refused(await run("discard", "s", "--control-url", url, "--state-dir", tmp_path), url, "is the sidecar running")


async def test_rm_leaves_what_a_running_sidecar_has_open(sidecar: Running, tmp_path: Path) -> None:
    here = ("--state-dir", tmp_path / "state")
    await call(sidecar, "s")
    refused(await run("rm", "s", *here), "'s' is open in a running sidecar", "sessions discard s")
    await call(sidecar, "s2")
    await sidecar.finalize("s2")
    refused(await run("rm", "s2", *here), "nobody has read it", "--unread")
    await sidecar.post("/trajectory/read", {"session_id": "s2", "drain": True})
    done = await run("rm", "s2", *here)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("s2: removed (it was finalized)")
    assert (await run("rm", "s2", *here)).out == "s2: was discarded already\n"
    assert (await sidecar.chat("s2", ask())).status_code == 409
    assert len((await sidecar.view("s"))["steps"]) == 1


async def test_rm_removes_what_a_sidecar_that_is_gone_had_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tito.db"
    rows = [finalized("open", state="open", finalization=None), finalized("unread")]
    await asyncio.to_thread(save, url, rows, steps=100)
    done = await run("rm", "open", "unread", "--unread", "--store", url)
    assert (done.code, len(done.out.splitlines())) == (0, 2)
    store = open_store(url, read_only=True)
    await store.start()
    assert await store.counts() == {"sessions": 2, "steps": 0}
    await store.close()
    refused(await run("rm", "never", "--store", url), "'never' is not in the store")
    refused(await run("rm", "x", "--store", f"sqlite:///{tmp_path}/none.db"), "there is no such file")
    assert not (tmp_path / "none.db").exists()


async def test_wait_drained_waits_for_calls_open_sessions_and_readers(sidecar: Running, tmp_path: Path) -> None:
    held = Held()
    sidecar.engine.replies.append(held.reply())
    running = asyncio.create_task(sidecar.chat("s", ask()))
    await held.reached(sidecar.engine)
    url, said = f"sqlite:///{tmp_path}/state/tito.db", list[str]()
    loop = asyncio.get_running_loop()

    async def in_flight() -> int:
        return int((await sidecar.control.get("/trajectory/stats")).json()["under_way"])

    def calls() -> int:
        return asyncio.run_coroutine_threadsafe(in_flight(), loop).result()

    waiting = asyncio.create_task(
        wait_drained(url, calls, timeout=60, interval=0.01, ignore_open=False, say=said.append)
    )

    async def waits_for(left: str) -> None:
        await until(lambda: f"waiting: {left}" in said, left)

    await waits_for("0 finalized and unread, 0 open with steps, 1 calls in flight")
    held.open.set()
    completion(await running)
    await waits_for("0 finalized and unread, 1 open with steps, 0 calls in flight")
    await sidecar.finalize("s")
    await waits_for("1 finalized and unread, 0 open with steps, 0 calls in flight")
    assert not waiting.done()
    await sidecar.post("/trajectory/read", {"session_id": "s", "drain": True})
    assert await waiting is True


async def test_wait_drained_as_a_command(sidecar: Running, tmp_path: Path) -> None:
    flags = (*reach(sidecar, tmp_path), "--interval", "0.01")
    assert (await run("wait-drained", *flags)).code == 0
    await sidecar.open("empty")
    assert (await run("wait-drained", *flags)).code == 0, "a session without steps holds nothing that could be lost"
    await call(sidecar, "s")
    done = await run("wait-drained", *flags, "--timeout", "0.05")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        "waiting: 0 finalized and unread, 1 open with steps, 0 calls in flight",
        "tito-sidecar: not drained within 0.05",
    ]
    assert (await run("wait-drained", *flags, "--ignore-open")).code == 0
    refused(await run("wait-drained", *flags, "--timeout", "soon"), "--timeout is 'soon'")

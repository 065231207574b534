"""A disk that takes bytes and then fails to keep them: `fsync` is an error, and nothing is acknowledged on it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fake_sglang import Reply
from tests.invariants.wire import Answer, call
from tests.recovery.mortal import Mortal
from tests.support.chat import ask, follow
from tests.support.waiting import until


@pytest.fixture(scope="session")
def bad_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes `fsync` fail."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here: fsync cannot be made to fail")
    library = tmp_path_factory.mktemp("bad-disk") / "bad_disk.so"
    source = Path(__file__).with_name("bad_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


async def test_what_the_disk_did_not_keep_was_not_acknowledged(
    qwen3_dir: Path, tmp_path: Path, bad_disk: Path
) -> None:
    flag = tmp_path / "bad"
    house = Mortal(qwen3_dir, tmp_path, {"LD_PRELOAD": str(bad_disk), "BAD_DISK": str(flag)})
    await house.open()
    world = house.world
    world.engine.script = None

    async def say(body: dict[str, object], retry_count: int = 0) -> Answer:
        return await call(world.data, "s", json.dumps(body).encode(), retry_count=retry_count)

    try:
        world.engine.replies += [Reply(text="One."), Reply(text="Lost.")]
        first = await say(ask())
        assert first.complete
        body = follow(ask(), first.messages[0], "Go on.")
        flag.touch()
        lost = await say(body)
        assert lost.status == 503
        assert lost.error is not None
        assert "input/output error" in lost.error["message"]
        assert (await world.control.get("/ready")).status_code == 503
        asked = len(world.engine.requests)
        assert (await say(body, 1)).status == 503
        assert len(world.engine.requests) == asked
        flag.unlink()

        async def ready() -> bool:
            return (await world.control.get("/ready")).status_code == 200

        await until(ready, "a sidecar that is ready again")
        world.engine.replies.append(Reply(text="Two."))
        second = await say(body, 2)
        assert second.messages[0]["content"] == "Two."
        house.kill()
        await house.restart()
        steps = (await world.view("s"))["steps"]
        assert [step["state"] for step in steps] == ["committed"] * 2
        assert [step["step_id"] for step in steps] == [*first.step_ids, *second.step_ids]
        world.engine.replies.append(Reply(text="Three."))
        assert (await say(follow(body, second.messages[0], "On."))).complete
        world.engine.assert_i1(session="s")
    finally:
        await house.close()

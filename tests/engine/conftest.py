"""One engine at a time: each test runs on every variant of the stand-in, and of the real SGLang if it is asked for.

The real ones carry the mark `real_engine` and are left out unless `-m` names it (`make test-engine`).
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.engine.models import ModelDirs, model, tokenizer_dir
from tests.engine.recipe import EngineUnavailable, engine_python
from tests.engine.server import RealServer
from tests.engine.subject import VARIANTS, Subject, Variant, parameters, stand_in
from tests.engine.tap import Tap
from tests.support.running import Running, running_sidecar

MARK = "real_engine"
SECONDS = 600
"""Limit of one test in front of the real engine; the machine may be slow."""
BUDGET = "ENGINE_SECONDS"
"""Variable with the seconds after which no more test of the real engine begins; unset: no limit."""
NOTES = pytest.StashKey[list[str]]()
BEGAN = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark; begin the report and the clock."""
    config.addinivalue_line("markers", f"{MARK}: in front of a real SGLang, which is installed first if need be")
    config.stash[NOTES] = []
    config.stash[BEGAN] = time.monotonic()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How long the engine's installation and starts took, or why there is none."""
    for note in dict.fromkeys(config.stash[NOTES]):
        terminalreporter.write_line(f"real engine: {note}")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what runs on the real engine and give it time; leave it out unless it is asked for."""
    real = [item for item in items if _on_real_engine(item)]
    for item in real:
        item.add_marker(MARK)
        item.add_marker(pytest.mark.timeout(SECONDS))
    if MARK not in config.option.markexpr:
        items[:] = [item for item in items if not item.get_closest_marker(MARK)]
        config.hook.pytest_deselected(items=real)


def _on_real_engine(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("served", ("", False))[1]


@dataclass(frozen=True)
class Served:
    """What one variant runs on; `server` is None for the stand-in, which each test starts for itself."""

    variant: Variant
    models: ModelDirs
    server: RealServer | None


@pytest.fixture(scope="session", params=parameters("cumulative", "incremental-keys"))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The variant's engine; a real server is started for all tests of its variant, and ended after them."""
    name, real = request.param
    variant = VARIANTS[name]
    began = time.monotonic()
    try:
        if not real:
            tokenizer = tokenizer_dir(variant.model)
            yield Served(variant, ModelDirs(tokenizer, tokenizer), None)
            return
        _skip_if_late(request.config)
        python, models = engine_python(), model(variant.model)
    except EngineUnavailable as reason:
        request.config.stash[NOTES].append(f"not tested: {reason}")
        pytest.skip(f"no real SGLang here: {reason}")
    installed = time.monotonic()
    log = tmp_path_factory.mktemp("sglang") / "server.log"
    server = RealServer(python, models.first, log, variant.arguments, variant.keys and variant.keys[0])
    server.start()
    request.config.stash[NOTES].append(
        f"{name} ready after {time.monotonic() - began:.0f} s: {installed - began:.0f} s to install it and to make "
        f"the model, {time.monotonic() - installed:.0f} s to start"
    )
    try:
        yield Served(variant, models, server)
    finally:
        server.stop()


@pytest.fixture
def in_time(request: pytest.FixtureRequest) -> None:
    """Skip tests of the real engine when its time is over."""
    if request.node.get_closest_marker(MARK):
        _skip_if_late(request.config)


def _skip_if_late(config: pytest.Config) -> None:
    limit = os.environ.get(BUDGET)
    if limit and time.monotonic() - config.stash[BEGAN] > float(limit):
        config.stash[NOTES].append(f"not all tested: the {limit} s of {BUDGET} are over")
        pytest.skip(f"no time left: the {limit} s of {BUDGET} are over")


@pytest.fixture
async def subject(in_time: None, served: Served) -> AsyncIterator[Subject]:
    """The engine behind its tap, as a test may expect it."""
    async with AsyncExitStack() as stack:
        if served.server is None:
            target = (await stack.enter_async_context(stand_in(served.variant, served.models.first))).url
        else:
            target = served.server.url
            served.server.assert_alive()
        tap = await stack.enter_async_context(Tap(target))
        user, admin = served.variant.keys or ("", "")
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=target, headers={"Authorization": f"Bearer {key}"}, timeout=120)
            )
            for key in (user or "none", admin or "none")
        ]
        found = Subject(
            variant=served.variant,
            real=served.server is not None,
            tap=tap,
            client=clients[0],
            admin=clients[1],
            first=str(served.models.first),
            second=str(served.models.second),
        )
        await found.reset()
        yield found
        if served.server is not None:
            served.server.assert_alive()


@pytest.fixture
async def running(subject: Subject, tmp_path: Path) -> AsyncIterator[Running]:
    """A sidecar in front of the engine. Greedy steps train, so that a test may know what comes."""
    settings = {"heartbeat_interval": 0.5, "train_off_policy_sampling": True, **subject.settings}
    async with running_sidecar(subject, tmp_path / "state", **settings) as found:  # type: ignore[arg-type]
        yield found

"""Who the workers behind `--engine-url` are, what they say, and how aborts reach them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from adapters.engines.base import ContractError, EngineRefusal, EngineUnreachable
from sidecar.generation.workers import Workers
from tests.fake_sglang import FakeSGLang
from tests.fake_sglang.router import FakeRouter, SilentServer
from tests.support.waiting import LIVENESS

NOWHERE = "http://127.0.0.1:9"


@asynccontextmanager
async def workers_at(url: str, api_key: str | None = None, admin_key: str | None = None) -> AsyncIterator[Workers]:
    one = Workers(url, api_key, admin_key)
    await one.start()
    try:
        async with asyncio.timeout(LIVENESS):
            yield one
    finally:
        await one.close()


@asynccontextmanager
async def engines(count: int, **options: Any) -> AsyncIterator[list[FakeSGLang]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(FakeSGLang(vocab_size=1000, eos_token_ids=(7,), **options))
            for _ in range(count)
        ]


@asynccontextmanager
async def answering(answer: Any, status: int = 200) -> AsyncIterator[str]:
    """A server that answers everything the same."""

    async def handle(_: web.Request) -> web.Response:
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_server_that_knows_no_workers_is_the_worker() -> None:
    async with engines(1) as [engine], workers_at(engine.url + "/") as workers:
        assert await workers.discover() == (engine.url,)
        assert not workers.router


async def test_a_router_names_its_workers_and_new_ones_are_found() -> None:
    async with engines(2) as [first, second], FakeRouter(first.url) as router, workers_at(router.url) as workers:
        assert await workers.discover() == (first.url,)
        assert workers.router
        router.listed.append(second.url)
        survey = await workers.survey()
        assert [state.url for state in survey.workers] == [first.url, second.url]


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        (["http://h:1@0", "http://h:1@1", "http://h:2/"], ("http://h:1", "http://h:2")),
        (["grpc://h:1", "http://h:2"], ("http://h:2",)),
    ],
)
async def test_ranks_of_a_server_are_one_and_what_speaks_no_http_is_left_out(
    listed: list[str], found: tuple[str, ...]
) -> None:
    async with FakeRouter(NOWHERE, listed=listed) as router, workers_at(router.url) as workers:
        assert await workers.discover() == found


async def test_a_router_without_workers_is_an_engine_that_cannot_be_reached() -> None:
    async with FakeRouter(NOWHERE, listed=[]) as router, workers_at(router.url) as workers:
        with pytest.raises(EngineUnreachable, match="lists no worker"):
            await workers.survey()


async def test_a_list_that_cannot_be_had_is_an_error_and_leaves_what_was_known() -> None:
    async with engines(1) as [engine], FakeRouter(engine.url, api_key="k") as router:
        async with workers_at(router.url) as stranger:
            with pytest.raises(EngineRefusal, match="Unauthorized"):
                await stranger.discover()
        async with workers_at(router.url, "k") as workers:
            await workers.discover()
            router.api_key = "another"
            with pytest.raises(EngineRefusal):
                await workers.discover()
            assert workers.urls == (engine.url,)
    async with answering({"data": []}) as url, workers_at(url) as workers:
        with pytest.raises(ContractError, match="lists no workers"):
            await workers.discover()


async def test_the_survey_is_one_picture_of_all_workers() -> None:
    async with (
        engines(1, weight_version="3", incremental=True, context_length=4096) as [first],
        engines(1, weight_version="3", incremental=True, context_length=2048) as [second],
        FakeRouter(first.url, second.url) as router,
        workers_at(router.url) as workers,
    ):
        survey = await workers.survey()
        assert survey.merged is not None
        assert (survey.merged.weight_version, survey.merged.incremental) == ("3", True)
        assert survey.merged.context_length == 2048
        assert (survey.silence, survey.disagreement, survey.without_spans) == (None, None, [])
        second.set_weight_version("4")
        survey = await workers.survey()
        assert survey.merged is not None
        assert survey.merged.weight_version is None
        assert survey.disagreement is not None
        assert f"{first.url} has 3, {second.url} has 4" in survey.disagreement


async def test_one_old_worker_means_that_versions_may_be_unknown() -> None:
    async with (
        engines(1) as [new],
        engines(1, version_spans=False) as [old],
        FakeRouter(new.url, old.url) as router,
        workers_at(router.url) as workers,
    ):
        assert (await workers.survey()).without_spans == [f"{old.url} says version 0.5.18"]


async def test_a_worker_that_is_silent_is_named_and_delays_no_other_beyond_the_limit() -> None:
    async with (
        engines(1) as [engine],
        SilentServer() as silent,
        FakeRouter(engine.url, listed=[engine.url, silent.url, NOWHERE]) as router,
        workers_at(router.url) as workers,
    ):
        begun = time.monotonic()
        survey = await workers.survey(1.0)
        assert time.monotonic() - begun < 5
        assert [state.info is not None for state in survey.workers] == [True, False, False]
        assert survey.silence is not None
        assert f"{silent.url}: no answer within 0.5 s" in survey.silence
        assert NOWHERE in survey.silence


async def test_a_router_vouches_for_workers_that_only_it_can_reach() -> None:
    async with (
        engines(1, weight_version="5") as [engine],
        FakeRouter(engine.url, listed=[NOWHERE]) as router,
        workers_at(router.url) as workers,
    ):
        survey = await workers.survey()
        assert survey.silence is None
        assert survey.merged is not None
        assert survey.merged.weight_version == "5"
        assert survey.without_spans  # cannot be known
        router.healthy = False
        assert (await workers.survey()).silence is not None


async def test_nobody_vouches_for_a_worker_that_had_answered() -> None:
    async with (
        engines(1) as [engine],
        FakeRouter(engine.url) as router,
        workers_at(router.url) as workers,
    ):
        assert (await workers.survey()).silence is None
        await engine.down()
        assert (await workers.survey()).silence is not None


async def test_aborts_go_to_every_worker_with_the_admin_key() -> None:
    async with (
        engines(2, api_key="user", admin_key="admin") as [first, second],
        FakeRouter(first.url, second.url) as router,
        workers_at(router.url, "user", "admin") as workers,
    ):
        await workers.discover()
        assert await workers.abort("a-rid")
        for engine in (first, second):
            [call] = engine.recorder.calls_to("/abort_request")
            assert (call.body, call.status) == ({"rid": "a-rid"}, 200)
    assert "/abort_request" not in router.asked


async def test_an_abort_counts_if_any_worker_could_be_asked() -> None:
    async with (
        engines(1) as [engine],
        SilentServer() as silent,
        FakeRouter(engine.url, listed=[engine.url, silent.url]) as router,
        workers_at(router.url) as workers,
    ):
        await workers.discover()
        assert await workers.abort("r")
        router.listed = [NOWHERE]
        await workers.discover()
        assert not await workers.abort("r")


async def test_a_worker_lives_if_it_answers_and_an_unknown_one_if_all_do() -> None:
    async with (
        engines(2) as [first, second],
        FakeRouter(first.url, second.url) as router,
        workers_at(router.url) as workers,
    ):
        await workers.discover()
        assert await workers.alive()
        await second.down()
        assert await workers.alive(first.url)
        assert not await workers.alive(second.url)
        assert not await workers.alive()
        assert not await workers.alive("http://stranger:1")

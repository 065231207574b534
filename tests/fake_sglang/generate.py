"""`POST /generate`: from the request to the last byte of its reply.

Promise: the order of checks, what comes before the headers and what inside a stream that already answered
200, and what an interrupted request leaves behind are SGLang 0.5.23's. Concurrency: one handler task per
request, cancelled by aiohttp when the client leaves; the generation itself is the job's task.
"""

import asyncio
from typing import TYPE_CHECKING, NoReturn

from aiohttp import web

from tests.fake_sglang import faults, wire
from tests.fake_sglang.contract import GenerateCall, parse_call, parse_json
from tests.fake_sglang.job import End, Job
from tests.fake_sglang.plan import Plan
from tests.fake_sglang.recorder import RecordedCall, RecordedRequest
from tests.fake_sglang.script import ScriptError
from tests.fake_sglang.signals import forever, wait_any
from tests.fake_sglang.state import Entry

if TYPE_CHECKING:
    from tests.fake_sglang.server import FakeSGLang


async def handle(engine: "FakeSGLang", request: web.Request, call: RecordedCall) -> web.StreamResponse:
    """The route."""
    parsed = parse_call(parse_json(request.headers.get("Content-Type", ""), await request.read()))
    record = engine.intake.record(parsed, call)
    try:
        entry = engine.intake.register(record, parsed)
    except wire.RefusalError as refusal:
        engine.intake.settle(record, "rejected", error=refusal.message)
        if parsed.stream:
            return await _refuse_in_stream(engine, request, refusal, record.rid)
        raise
    if not all(map(engine.vocabulary.contains, record.input_ids)):
        engine.intake.crash(record)
        await forever()
    try:
        plan = engine.intake.plan(record, parsed)
    except ScriptError as error:
        engine.intake.forget(entry, engine.state)
        engine.intake.settle(record, "rejected", error=str(error))
        return web.json_response({"error": {"message": f"fake_sglang: {error}"}}, status=500)
    return await Exchange(engine, request, parsed, record, entry, plan).serve()


async def _refuse_in_stream(
    engine: "FakeSGLang", request: web.Request, refusal: wire.RefusalError, rid: str
) -> web.StreamResponse:
    response = await _open_stream(request)
    await response.write(wire.sse(wire.stream_error(refusal.message, code=refusal.status)))
    await response.write(wire.DONE)
    # Of a refused stream too: one with a duplicate rid kills the request that has it.
    engine.intake.after_stream(rid, engine.state)
    return response


async def _open_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    return response


class Exchange:
    """One accepted request and its reply."""

    def __init__(
        self,
        engine: "FakeSGLang",
        request: web.Request,
        call: GenerateCall,
        record: RecordedRequest,
        entry: Entry,
        plan: Plan,
    ) -> None:
        self.engine = engine
        self.state = engine.state
        self.request = request
        self.call = call
        self.record = record
        self.entry = entry
        self.plan = plan
        self.inside = False

    async def serve(self) -> web.StreamResponse:
        """Reply, and keep the books whatever happens."""
        try:
            early = await self._before_headers()
            if early is not None:
                return early
            return await (self._stream() if self.call.stream else self._whole())
        except asyncio.CancelledError:
            self._client_gone()
            raise
        except ConnectionError:
            self._client_gone()
            # aiohttp cancels this handler as soon as it has seen the lost connection itself.
            await forever()
        finally:
            if self.entry.job is None:
                self.engine.intake.forget(self.entry, self.state)

    async def _before_headers(self) -> web.StreamResponse | None:
        for fault in self.plan.faults:
            if isinstance(fault, faults.SlowStart):
                await asyncio.sleep(fault.seconds)
                if fault.until is not None:
                    await wait_any(fault.until)
            elif isinstance(fault, faults.HttpError):
                self._settle("failed", f"scripted {fault}")
                return web.Response(
                    status=fault.status, body=wire.dump(fault.body), content_type="application/json"
                )
            elif isinstance(fault, faults.HtmlBody):
                self._settle("failed", f"scripted {fault}")
                return web.Response(status=fault.status, text=fault.html, content_type="text/html")
        cut = self.plan.cut
        if isinstance(cut, faults.Silence) and not cut.headers:
            self._settle("failed", f"scripted {cut}")
            await forever()
        return None

    async def _dispatch(self) -> Job:
        """Through the gate, into the scheduler."""
        await self.state.enter()
        self.inside = True
        return self.engine.intake.dispatch(self.entry, self.call, self.plan, self.state)

    def _leave(self) -> None:
        if self.inside:
            self.inside = False
            self.state.leave()

    # Streaming.

    async def _stream(self) -> web.StreamResponse:
        response = await _open_stream(self.request)
        job = await self._dispatch()
        since = await self._pump(job, response)
        end = self._end_of(job)
        if end.cut is not None:
            await self._cut_stream(end.cut, response)
        else:
            await response.write(wire.sse(wire.final_chunk(job, since)))
            await response.write(wire.DONE)
            self._settle_end(end)
        self._leave()
        self.engine.intake.after_stream(self.record.rid, self.state)
        await response.write_eof()
        return response

    async def _pump(self, job: Job, response: web.StreamResponse) -> int:
        """Write chunks as they become due; returns how many ids were sent."""
        since = 0
        while True:
            due = await job.due()
            for mark in due:
                if mark is None:
                    return since
                if isinstance(mark, faults.GarbageChunk):
                    await response.write(mark.data)
                    continue
                await response.write(wire.sse(wire.intermediate_chunk(job, mark, since)))
                since = mark.count

    async def _cut_stream(self, cut: faults.Cut, response: web.StreamResponse) -> None:
        self._settle("failed", f"scripted {cut}")
        if isinstance(cut, faults.StreamError):
            await response.write(wire.sse(wire.stream_error(cut.message, code=cut.code, kind=cut.type)))
            await response.write(wire.DONE)
        elif isinstance(cut, faults.Silence):
            self._leave()
            await forever()
        elif isinstance(cut, faults.DropConnection) and not cut.clean:
            await self._drop()

    # Not streaming.

    async def _whole(self) -> web.StreamResponse:
        job = await self._dispatch()
        await job.ended.wait()
        end = self._end_of(job)
        if end.cut is not None:
            return await self._cut_whole(end.cut)
        self._leave()
        status_code = end.finish_reason.get("status_code")
        self._settle_end(end)
        if status_code == 400:
            raise wire.RefusalError.value(end.finish_reason["message"])
        if status_code is not None:
            raise wire.RefusalError.http(status_code, end.finish_reason["message"])
        body = wire.dump(wire.final_chunk(job, 0))
        for garbage in self.plan.of_type(faults.GarbageChunk):
            body = garbage.data
        return web.Response(body=body, content_type="application/json")

    async def _cut_whole(self, cut: faults.Cut) -> web.StreamResponse:
        self._settle("failed", f"scripted {cut}")
        self._leave()
        if isinstance(cut, faults.StreamError):
            body = {"error": {"message": cut.message}}
            return web.Response(status=cut.code, body=wire.dump(body), content_type="application/json")
        if isinstance(cut, faults.Silence):
            await forever()
        return await self._drop()

    # Endings.

    async def _drop(self) -> NoReturn:
        self._leave()
        if self.request.transport is not None:
            self.request.transport.abort()
        await forever()

    def _end_of(self, job: Job) -> End:
        if job.end is None:
            # The engine went down under the job; the connection goes with it.
            raise ConnectionResetError("the stand-in engine went down")
        return job.end

    def _settle_end(self, end: End) -> None:
        if end.finish_reason.get("status_code") is not None:
            self._settle("failed", end.finish_reason["message"])
        else:
            self._settle("finished" if end.kind == "finished" else "aborted")

    def _settle(self, outcome: str, error: str | None = None) -> None:
        self.engine.intake.settle(self.record, outcome, error=error)

    def _client_gone(self) -> None:
        self._settle("disconnected")
        job = self.entry.job
        if job is None or job.ended.is_set() or self.call.stream:
            self._stop_generating()
        else:
            # Without a stream SGLang only looks now and then whether the client is still there.
            self.engine.intake.later(self.engine.options.timings.disconnect_poll, self._stop_generating)

    def _stop_generating(self) -> None:
        if self.state.entries.get(self.record.rid) is self.entry:
            self.state.abort(self.record.rid)
        self._leave()

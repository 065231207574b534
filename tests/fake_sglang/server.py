"""The stand-in engine: a small asyncio server that speaks SGLang's wire and says what a test scripted.

Promise: on the wire it behaves as SGLang 0.5.23 does (measured, or read in its source), and it is
deterministic: the same script and requests give the same ids and logprobs. Concurrency: lives in the event
loop that called `start`; its attributes may be changed from that loop at any time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

from aiohttp import web
from tokenizers import Tokenizer

from tests.fake_sglang.control import build_app
from tests.fake_sglang.faults import Fault
from tests.fake_sglang.intake import Intake
from tests.fake_sglang.options import Options, Timings
from tests.fake_sglang.parse_endpoints import Parsing
from tests.fake_sglang.recorder import RecordedCall, RecordedRequest, Recorder
from tests.fake_sglang.script import Reply, ScriptError
from tests.fake_sglang.signals import Signal
from tests.fake_sglang.state import EngineState
from tests.fake_sglang.vocabulary import Vocabulary

# A liveness limit for the `wait_*` helpers, generous because the machine may be busy.
LIVENESS_SECONDS = 30.0
BACKLOG = 2048


class FakeSGLang:
    """A scripted SGLang server on a free port of the loopback interface.

    Where a reply comes from: a continuation of an interrupted one, else `replies` (a queue), else
    `script(request)`, else a reply derived from a hash of the prompt.

    vocab_size: ids 0 to vocab_size-1 exist; any other in a prompt kills the engine, as in the real one. None:
        the tokenizer's.
    tokenizer / tokenizer_path: needed for text in scripts and replies; without one replies carry no `text`
        (as with `--skip-tokenizer-init`). tokenizer_path is also what `/model_info` reports.
    incremental: `--incremental-streaming-output`; else each chunk repeats everything.
    version_spans: False behaves as SGLang before 0.5.19, without `weight_versions`.
    parsers: (reasoning_parser, tool_call_parser) that `/model_info` reports.
    continue_aborted: serve interrupted replies on; False: every request is a new reply.
    abort_overrun: ids still sampled after an abort; SGLang itself has 1, 0 keeps partial outputs predictable.
    experts: (layers, experts per token, experts) with `--enable-return-routed-experts`; None: without, or dense.
    max_running_requests: beyond it requests wait in the scheduler's queue.
    max_queued_requests: beyond it they are refused with 503, in a stream as an abort.
    version: what the server calls itself; names and fields that came later (0.5.10 to 0.5.19) are missing.
    """

    def __init__(
        self,
        *,
        vocab_size: int | None = None,
        eos_token_ids: Sequence[int] = (),
        tokenizer: Tokenizer | None = None,
        tokenizer_path: str | None = None,
        model_path: str = "fake",
        incremental: bool = False,
        context_length: int = 32768,
        api_key: str | None = None,
        admin_key: str | None = None,
        version_spans: bool = True,
        weight_version: str = "default",
        parsers: tuple[str | None, str | None] = (None, None),
        continue_aborted: bool = True,
        abort_overrun: int = 0,
        max_running_requests: int | None = None,
        max_queued_requests: int | None = None,
        version: str = "0.5.23",
        experts: tuple[int, int, int] | None = None,
        timings: Timings | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.options = Options(
            model_path=model_path,
            tokenizer_path=tokenizer_path,
            context_length=context_length,
            incremental=incremental,
            version_spans=version_spans and int(version.split(".")[2]) >= 19,
            api_key=api_key,
            admin_key=admin_key,
            reasoning_parser=parsers[0],
            tool_call_parser=parsers[1],
            max_running_requests=max_running_requests,
            max_queued_requests=max_queued_requests,
            version=version,
            abort_overrun=abort_overrun,
            experts=experts,
            timings=timings or Timings(),
        )
        self.vocabulary = Vocabulary(vocab_size, eos_token_ids, tokenizer, tokenizer_path)
        self.served_model_name = model_path
        self.continue_aborted = continue_aborted
        self.replies: deque[Reply] = deque()
        self.script: Callable[[RecordedRequest], Reply] | None = None
        self.parsing = Parsing()
        self.recorder = Recorder(self.vocabulary)
        self.crashed = False
        self.is_down = True
        self.script_errors: list[ScriptError] = []
        self.changed = Signal()
        self.state = EngineState(self.options, self.vocabulary, self.changed, weight_version)
        self.host, self.port = host, port
        self.intake = Intake(self)
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    # Life.

    @property
    def url(self) -> str:
        """Base URL without a trailing slash; known after `start`."""
        return f"http://{self.host}:{self.port}"

    async def start(self) -> None:
        """Listen on `host` and a free port."""
        runner = web.AppRunner(build_app(self), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._runner = runner
        await self.up()

    async def stop(self) -> None:
        """Close everything. A script error that the engine could only answer with a 500 is raised here."""
        await self.down()
        await self.intake.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self.script_errors:
            raise self.script_errors[0]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def down(self) -> None:
        """As if the process was killed: the socket is closed, connections break, requests in flight are lost."""
        self.is_down = True
        if self._site is not None:
            await self._site.stop()
            self._site = None
        self.intake.lose_all()
        # A new process knows nothing of the old one's requests and is not paused.
        self.state = EngineState(self.options, self.vocabulary, self.changed, self.state.weight_version)
        server = self._runner.server if self._runner is not None else None
        for connection in server.connections if server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()
        self.changed.fire()

    async def up(self) -> None:
        """Listen again on the same port, as a freshly started process with the same weights."""
        if self._runner is None:
            raise RuntimeError("FakeSGLang.up() before start(); call start() first")
        if not self.is_down:
            return
        self._site = web.TCPSite(self._runner, self.host, self.port, reuse_address=True, backlog=BACKLOG)
        await self._site.start()
        self.port = self._runner.addresses[0][1]
        self.crashed = self.is_down = False

    # Script.

    def fail_next(self, fault: Fault, times: int = 1) -> None:
        """Let the next request (or the next `times`) meet `fault`; its reply stays available for a retry."""
        self.intake.one_shots.extend([fault] * times)

    def set_weight_version(self, version: str) -> None:
        """From now on ids are sampled by these weights (as a weight update inside a pause would do)."""
        self.state.set_version(version)

    def reset(self) -> None:
        """Forget records and scripts between examples of one test; the engine must be idle."""
        if self.intake.active:
            raise RuntimeError(
                f"FakeSGLang.reset() with {len(self.intake.active)} requests in flight; await wait_idle()"
            )
        self.recorder = Recorder(self.vocabulary)
        self.replies.clear()
        self.intake.forget_scripts()
        self.script = None

    # Looking at it.

    @property
    def requests(self) -> list[RecordedRequest]:
        """Every well-typed `/generate` request, in order of arrival."""
        return self.recorder.requests

    @property
    def calls(self) -> list[RecordedCall]:
        """Every HTTP call of any kind, in order of arrival."""
        return self.recorder.calls

    async def wait_until(self, predicate: Callable[[], object], timeout: float = LIVENESS_SECONDS) -> None:
        """Until `predicate()` holds; looked at whenever a request arrives, grows or ends, or the engine changes."""
        await self.changed.wait_until(predicate, timeout)

    async def wait_requests(self, count: int, timeout: float = LIVENESS_SECONDS) -> list[RecordedRequest]:
        """Until `count` requests have arrived; returns them."""
        await self.wait_until(lambda: len(self.requests) >= count, timeout)
        return self.requests[:count]

    async def wait_tokens(self, request: RecordedRequest, count: int, timeout: float = LIVENESS_SECONDS) -> None:
        """Until `request` has `count` output ids."""
        await self.wait_until(lambda: len(request.output_ids) >= count, timeout)

    async def wait_idle(self, timeout: float = LIVENESS_SECONDS) -> None:
        """Until no request is in flight, on the wire or in the scheduler."""
        await self.wait_until(lambda: not self.intake.active and not self.state.jobs, timeout)

    def assert_i1(self, session: str | None = None, *, expected_roots: int = 1) -> None:
        """See `Recorder.assert_i1`."""
        self.recorder.assert_i1(session, expected_roots=expected_roots)

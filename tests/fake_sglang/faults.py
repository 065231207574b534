"""What can go wrong with one engine reply, as data.

Promise: a fault is a value; it is put on a `Reply` or handed to `FakeSGLang.fail_next`, and it acts once (a
retry that continues the same reply meets no fault). Concurrency: values are immutable and may be shared.

`after` counts output ids of this request: the fault strikes when that many were generated and sent.
"""

import asyncio
import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HttpError:
    """An HTTP error with a JSON body instead of a reply, before any header of the stream."""

    status: int = 500
    body: object = field(default_factory=lambda: {"error": {"message": "Internal Server Error"}})


@dataclass(frozen=True, slots=True)
class HtmlBody:
    """A page of HTML where JSON or SSE is due: a proxy's error page (502) or a captive portal (200)."""

    status: int = 502
    html: str = "<html><body><h1>502 Bad Gateway</h1></body></html>"


@dataclass(frozen=True, slots=True)
class SlowStart:
    """No byte at all, not even headers, for `seconds` or until the event `until` is set."""

    seconds: float = 0.0
    until: asyncio.Event | None = None


@dataclass(frozen=True, slots=True)
class StreamError:
    """An error event inside a stream that began with HTTP 200; without streaming a plain HTTP error."""

    after: int = 0
    message: str = "scripted stream error"
    code: int = 400
    type: str = "invalid_request_error"


@dataclass(frozen=True, slots=True)
class EngineAbort:
    """The scheduler ends the request: finish_reason `abort` with a status code and an error type."""

    after: int = 0
    status_code: int | None = 500
    err_type: str | None = "InternalServerError"
    message: str = "scripted engine abort"


@dataclass(frozen=True, slots=True)
class DropConnection:
    """The connection goes away. `clean` ends the HTTP body properly, but without a finish reason and `[DONE]`."""

    after: int = 0
    clean: bool = False


@dataclass(frozen=True, slots=True)
class Silence:
    """The connection stays open and nothing more ever comes. `headers` False: not even the response headers."""

    after: int = 0
    headers: bool = True


@dataclass(frozen=True, slots=True)
class GarbageChunk:
    """Bytes that are no JSON, in the middle of the stream; without streaming they are the whole body."""

    after: int = 0
    data: bytes = b"data: {oops\n\n"


@dataclass(frozen=True, slots=True)
class LogprobCount:
    """The last chunk carries `delta` logprobs more (or, negative, fewer) than ids."""

    delta: int = -1


@dataclass(frozen=True, slots=True)
class BadLogprob:
    """The logprob of output id `index` is `value`: NaN (written as the bare word), None, or a positive number."""

    value: float | None = math.nan
    index: int = 0


@dataclass(frozen=True, slots=True)
class CompletionTokens:
    """The last chunk's `completion_tokens` is off by `delta`."""

    delta: int = 1


@dataclass(frozen=True, slots=True)
class NoRoutedRows:
    """The last chunk lacks `routed_experts`, though they were asked for."""


@dataclass(frozen=True, slots=True)
class AllRoutedRows:
    """The last chunk has all rows, whatever `routed_experts_start_len` asked (servers before 0.5.12)."""


@dataclass(frozen=True, slots=True)
class RoutedRowCount:
    """The last chunk has `delta` rows more (or, negative, fewer) than it should."""

    delta: int = -1


@dataclass(frozen=True, slots=True)
class ExpertId:
    """In row `row` of the last chunk the experts `slots[0]` to `slots[1]` of every layer are `value`."""

    value: int = 255
    row: int = -1
    slots: tuple[int, int | None] = (0, None)


BeforeHeaders = HttpError | HtmlBody
Cut = StreamError | EngineAbort | DropConnection | Silence
Routing = NoRoutedRows | AllRoutedRows | RoutedRowCount | ExpertId
Distortion = LogprobCount | BadLogprob | CompletionTokens | Routing
Fault = BeforeHeaders | SlowStart | Cut | GarbageChunk | Distortion

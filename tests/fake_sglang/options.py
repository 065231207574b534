"""How one stand-in engine is set up: the server arguments of SGLang that matter to a client.

Promise: plain values; changing one while the engine runs acts on requests that arrive later. Concurrency:
values.
"""

from dataclasses import dataclass, field

PAUSE_MODES = ("abort", "retract", "in_place")


@dataclass(slots=True)
class Timings:
    """SGLang's built-in waits in seconds. The defaults keep tests quick; `Timings.real()` are the measured ones.

    pause_poll: how often a pause in mode `abort` looks whether all ended (so a pause that aborts takes this
    long).
    rid_reuse: when, after a stream, whatever then runs under its rid is aborted.
    disconnect_poll: how long a non-streaming request runs on after its client left.
    health: the time of `/health`; health_paused: how long it blocks, and then answers 503, while paused.
    """

    pause_poll: float = 0.01
    rid_reuse: float = 2.0
    disconnect_poll: float = 0.05
    health: float = 0.0
    health_paused: float = 0.05

    @classmethod
    def real(cls) -> "Timings":
        """As measured on SGLang 0.5.23."""
        return cls(pause_poll=1.0, rid_reuse=2.0, disconnect_poll=3.5, health=1.0, health_paused=20.0)


@dataclass(slots=True)
class Options:
    """See `FakeSGLang` for what each option means."""

    model_path: str = "fake"
    tokenizer_path: str | None = None
    context_length: int = 32768
    incremental: bool = False
    version_spans: bool = True
    api_key: str | None = None
    admin_key: str | None = None
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    max_running_requests: int | None = None
    max_queued_requests: int | None = None
    version: str = "0.5.23"
    abort_overrun: int = 0
    experts: tuple[int, int, int] | None = None
    timings: Timings = field(default_factory=Timings)

    def since(self, patch: int) -> bool:
        """Whether this is SGLang 0.5.`patch` or a later one."""
        return int(self.version.split(".")[2]) >= patch

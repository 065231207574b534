"""A stand-in for SGLang: speaks its wire, says what a test scripts, records what it was asked.

    async with FakeSGLang(vocab_size=1000, eos_token_ids=(7,)) as engine:
        engine.replies.append(Reply(ids=[11, 12, 13]))
        ...                                             # drive something that talks to engine.url
        engine.assert_i1(session="s1")                  # prompts only ever grew by what was sampled

`python -m tests.fake_sglang --help` runs it alone. Faults are in `tests.fake_sglang.faults`.
"""

from tests.fake_sglang import faults
from tests.fake_sglang.faults import Fault
from tests.fake_sglang.options import Timings
from tests.fake_sglang.recorder import RecordedCall, RecordedRequest, Recorder
from tests.fake_sglang.script import Meter, Reply, ScriptError
from tests.fake_sglang.server import FakeSGLang

__all__ = [
    "FakeSGLang",
    "Fault",
    "Meter",
    "RecordedCall",
    "RecordedRequest",
    "Recorder",
    "Reply",
    "ScriptError",
    "Timings",
    "faults",
]

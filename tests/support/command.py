"""`tito-sidecar` as a user runs it, but in this process: a start of its own takes seconds."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from sidecar import cli


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def run_command(*arguments: str | Path) -> Done:
    """Run `tito-sidecar ARGUMENTS`, in a thread if an event loop runs: most commands have one of their own."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: object = 0
    with (
        mock.patch.object(sys, "argv", ["tito-sidecar", *map(str, arguments)]),
        mock.patch.dict("os.environ", {"COLUMNS": "80"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
    assert isinstance(code, int)
    return Done(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]


def refused(done: Done, *words: str) -> None:
    """Exit code 2, one line on stderr that holds `words`, nothing on the output."""
    assert (done.code, done.out) == (2, ""), done
    assert len(done.err.splitlines()) == 1, done.err
    for word in words:
        assert word in done.err, done.err

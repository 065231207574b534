"""`tito-sidecar serve` with its event loop watched.

`python -m benchmarks.watched_sidecar WATCH_FILE SETTINGS_JSON`: the same start as the command's, with one more task
on the loop.
"""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from benchmarks.loop_watch import watching
from sidecar.config import Settings, load_settings
from sidecar.serve import raise_file_limit, run, serve, set_up_logging


async def _run(settings: Settings, watch: Path) -> None:
    with watching(watch):
        await serve(settings)


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    settings = load_settings(orjson.loads(arguments[1]))
    set_up_logging()
    raise_file_limit()
    run(_run(settings, Path(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])

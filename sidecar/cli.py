"""The command line: `tito-sidecar serve | demo | engine | check-template | sessions | export | ...`.

Wrong settings are one line each and exit code 2.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sidecar.config import SettingsError, default_state_dir, load_settings, split_address
from sidecar.export.command import export
from sidecar.flags import with_settings_flags
from sidecar.intercept.commands import ca, redirect_init
from sidecar.session_tools.commands import sessions

app = typer.Typer(
    help="Token in, token out between unmodified agents, SGLang and slime.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # its boxes cut long flags short
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(sessions, name="sessions")
app.command("export")(export)
app.add_typer(ca, name="ca")
app.command("redirect-init")(redirect_init)
_errors = Console(stderr=True, highlight=False, soft_wrap=True)


@app.command()
@with_settings_flags
def serve(flags: dict[str, Any], config: Path | None) -> None:
    """Run the sidecar in front of an SGLang server."""
    from sidecar.serve import raise_file_limit, run, serve, set_up_logging

    settings = load_settings(flags, config)
    set_up_logging()
    raise_file_limit()
    run(serve(settings))


@app.command()
def engine(
    listen: Annotated[str, typer.Option(help="address of the engine")] = "127.0.0.1:30000",
    cache_dir: Annotated[Path | None, typer.Option(help="where the tokenizer is unpacked")] = None,
    context_length: Annotated[int, typer.Option(min=256, help="tokens per sequence")] = 8192,
    slots: Annotated[int, typer.Option(min=1, help="sequences at once")] = 4,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: half of them)")] = None,
) -> None:
    """Run the embedded CPU engine alone: SmolLM2-135M behind SGLang's /generate."""
    import uvicorn

    from sidecar.local_engine import LocalEngine, build_app, default_threads, prepare_model

    host, port = _address(listen)
    files = prepare_model(cache_dir or default_state_dir() / "engine")
    local = LocalEngine(files, context_length=context_length, slots=slots, threads=threads or default_threads())
    typer.echo(f"engine: http://{host}:{port}  tokenizer: {files.tokenizer_dir}")
    uvicorn.run(build_app(local), host=host, port=port, log_level="warning", timeout_graceful_shutdown=5)


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="where segments and samples are written")] = Path("demo-output"),
    turns: Annotated[int, typer.Option(min=6, help="turns of the conversation")] = 8,
    seed: Annotated[int, typer.Option(help="seed of the engine's sampler")] = 7,
) -> None:
    """Run engine, sidecar and an unmodified OpenAI-SDK agent on this machine, and print what was trained."""
    from sidecar.demo.run import run_demo

    asyncio.run(run_demo(output, turns, seed))


@app.command("check-template")
def check_template(
    paths: Annotated[
        list[str], typer.Argument(help="tokenizer directories, hub ids or template files", metavar="PATH")
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="path or hub id of the tokenizer of template files", show_default=False)
    ] = None,
    model_family: Annotated[str | None, typer.Option(help="auto or a family's name", show_default=False)] = None,
    tool_call_parser: Annotated[str | None, typer.Option(help="as for serve", show_default=False)] = None,
    reasoning_parser: Annotated[str | None, typer.Option(help="as for serve", show_default=False)] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with any of serve's settings")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per path, a line each")] = False,
) -> None:
    """Tell whether chat templates allow exact appending.

    Exit code 0: all do. 1: serve refuses one. 2: a path could not be examined, or a flag is wrong."""
    from sidecar.check_template.command import check_paths

    given = {
        "tokenizer": tokenizer,
        "model_family": model_family,
        "tool_call_parser": tool_call_parser,
        "reasoning_parser": reasoning_parser,
    }
    settings = load_settings({name: value for name, value in given.items() if value is not None}, config)
    raise typer.Exit(check_paths(paths, settings, as_json=as_json, complain=_complain))


@app.command("inject-webhook")
def inject_webhook(
    listen: Annotated[
        str | None, typer.Option(help="HTTPS address [0.0.0.0:8443]", show_default=False, metavar="TEXT")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="certificate chain (PEM), read again on change")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="its key (PEM)")] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file: image, engine_url, mode, secret, settings, resources, ...")
    ] = None,
) -> None:
    """Serve the admission webhook that adds the sidecar to pods (docs/injection.md).

    The session secret is TITO_SESSION_SECRET."""
    from sidecar.injection.server import serve_webhook, set_up_logging
    from sidecar.injection.settings import load_injection_settings

    given = {"listen": listen, "tls_cert": tls_cert, "tls_key": tls_key}
    settings = load_injection_settings({name: value for name, value in given.items() if value is not None}, config)
    set_up_logging()
    asyncio.run(serve_webhook(settings))


def _address(listen: str) -> tuple[str, int]:
    try:
        return split_address(listen)
    except ValueError as error:
        raise SettingsError(f"--listen is {listen!r}: {error}") from None


def main() -> None:
    """Entry point of the `tito-sidecar` script."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # "PyTorch was not found": it is not needed
    try:
        app()
    except Exception as error:
        if not _expected(error):
            raise
        _complain(str(error))
        raise SystemExit(2) from None


def _complain(text: str) -> None:
    for line in text.splitlines():
        _errors.print(f"tito-sidecar: {line}", markup=False)


def _expected(error: Exception) -> bool:
    """Errors whose text tells a user what to do; all others are bugs and keep their traceback."""
    from sidecar.export.errors import ExportError
    from sidecar.intercept.certificate import AuthorityError
    from sidecar.local_engine import EngineExtraError, LlamaError, ModelFileError
    from sidecar.model_files import ModelFilesError
    from sidecar.store.protocol import StoreError
    from sidecar.tito.errors import TitoError
    from sidecar.web.listener import ListenError
    from trainer_hooks.control_errors import ControlError

    kinds: tuple[type[Exception], ...] = (
        SettingsError,
        ModelFilesError,
        AuthorityError,
        EngineExtraError,
        LlamaError,
        ModelFileError,
        StoreError,
        ExportError,
        TitoError,
        ListenError,
        ControlError,
        PermissionError,
    )
    if isinstance(error, kinds):
        return True
    return type(error).__name__ in (
        "InterceptorError",
        "DemoError",
        "RedirectError",
    )  # their modules import what is not needed here


if __name__ == "__main__":
    main()

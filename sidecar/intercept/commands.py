"""`tito-sidecar ca ...` and `redirect-init`: what is set up around an intercepted agent.

Settings of `ca` are those of `serve`. Both its commands make the CA if there is none yet, as `serve --intercept`
does, and show nothing of its key.
"""

from __future__ import annotations

import shlex
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import orjson
import typer

from sidecar.config import Settings, SettingsError, load_settings

ca = typer.Typer(
    help="What an intercepted agent has to trust.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_CaDir = Annotated[Path | None, typer.Option(help="as for serve (default: <state-dir>/ca)", show_default=False)]
_StateDir = Annotated[Path | None, typer.Option(help="the sidecar's --state-dir", show_default=False)]
_Config = Annotated[Path | None, typer.Option(help="YAML file with any of serve's settings")]


@ca.command()
def bundle(
    ca_dir: _CaDir = None,
    state_dir: _StateDir = None,
    config: _Config = None,
    output: Annotated[
        Path | None, typer.Option(help="file to write, with Java's trust store beside it (default: stdout)")
    ] = None,
) -> None:
    """Print the public roots and the interception CA's certificate as one PEM file."""
    from sidecar.intercept.authority import open_authority

    settings = _settings(ca_dir, state_dir, config)
    assert settings.ca_dir is not None
    found = open_authority(settings.ca_dir, output)
    typer.echo(str(found.bundle) if output is not None else found.bundle.read_text(), nl=output is not None)


@ca.command()
def env(
    ca_dir: _CaDir = None,
    state_dir: _StateDir = None,
    config: _Config = None,
    at: Annotated[
        str | None, typer.Option(help="where the agent sees the bundle, e.g. /etc/tito-ca/ca-bundle.pem")
    ] = None,
    form: Annotated[
        Literal["shell", "docker", "json"], typer.Option("--format", help="how the variables are written")
    ] = "shell",
) -> None:
    """Print what to set for Python, Node, curl, Go and Java; `eval "$(tito-sidecar ca env)"` sets it."""
    from sidecar.intercept.authority import open_authority
    from sidecar.intercept.trust import USES, agent_variables

    settings = _settings(ca_dir, state_dir, config)
    assert settings.ca_dir is not None
    place = PurePosixPath(at) if at is not None else open_authority(settings.ca_dir, settings.ca_bundle).bundle
    variables = agent_variables(place.absolute() if isinstance(place, Path) else place)
    if form == "json":
        typer.echo(orjson.dumps(variables, option=orjson.OPT_INDENT_2))
        return
    for name, value in variables.items():
        line = f"{name}={value}" if form == "docker" else f"export {name}={shlex.quote(value)}"
        typer.echo(line if form == "docker" else f"{line}  # {USES[name]}")


def _settings(ca_dir: Path | None, state_dir: Path | None, config: Path | None) -> Settings:
    given = {"ca_dir": ca_dir, "state_dir": state_dir}
    return load_settings({name: value for name, value in given.items() if value is not None}, config)


def redirect_init(
    port: Annotated[int, typer.Option(min=1, max=65535, help="port of --intercept transparent@PORT")] = 8081,
    uid: Annotated[int, typer.Option(min=1, help="uid of the sidecar, which is not redirected")] = 1337,
    control_port: Annotated[int, typer.Option(min=1, max=65535, help="control plane, refused to agents")] = 8801,
    resolv_conf: Annotated[Path, typer.Option(help="names the DNS servers that stay reachable")] = Path(
        "/etc/resolv.conf"
    ),
    undo: Annotated[bool, typer.Option("--undo", help="take the rules out again")] = False,
    show: Annotated[bool, typer.Option("--show", help="print the rules, change nothing")] = False,
) -> None:
    """Redirect all TCP of this network namespace to the interceptor (needs NET_ADMIN, NET_RAW and iptables)."""
    from sidecar.intercept.packet_filter import families, install, remove
    from sidecar.intercept.redirect import CHAINS, Redirect, read_resolvers

    present = families()
    if undo:
        remove(present)
        typer.echo("redirect rules: none")
        return
    try:
        resolvers = read_resolvers(resolv_conf.read_text())
    except OSError as error:
        raise SettingsError(f"--resolv-conf {str(resolv_conf)!r}: {error}; name a readable file") from error
    redirect = Redirect(port=port, control_port=control_port, uid=uid, resolvers=resolvers)
    if show:
        for family in present:
            for table in CHAINS:
                typer.echo(f"# IPv{family}\n{redirect.text(family, table, 0)}", nl=False)
        return
    install(redirect, present)
    shown = " and ".join(f"IPv{family}" for family in present)
    typer.echo(
        f"redirect rules: {shown} to port {port}, but for uid {uid}; DNS to {', '.join(resolvers) or 'nobody'}"
    )

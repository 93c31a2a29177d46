"""The command line. Every command imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

from rolloutpipe_core import __version__
from rolloutpipe_core.cli import bench, certify, config, doctor, pins, read, run, servers
from rolloutpipe_core.cli.start import Commands, start

app = typer.Typer(
    cls=Commands,
    help="RolloutPipe: pipelined, on-policy GRPO rounds through Redis and S3.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, and those hold secrets
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rolloutpipe {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command()(run.quickstart)
app.command()(servers.up)
app.command()(servers.down)
app.command("run")(run.run)
app.command()(run.rollout)
app.command()(run.train)
app.command()(read.status)
app.command()(read.groups)
app.command()(read.show)
app.command()(read.why)
app.command()(read.audit)
app.command()(read.timeline)
app.command()(read.report)
app.command()(read.metrics)
app.command()(pins.pin)
app.command()(pins.unpin)
app.command()(pins.pins)
app.command()(certify.certify)
app.command()(doctor.doctor)
app.add_typer(config.app, name="config")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Entry point `rolloutpipe`."""
    start(app)

"""The command line. Every command imports what it needs when it runs, so that `--help` answers at once."""

from __future__ import annotations

import errno
import signal
import sys
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from rolloutpipe_core import __version__
from rolloutpipe_core.cli import bench, certify, config, doctor, pins, read, run, servers
from rolloutpipe_core.errors import BadInput, RolloutPipeError

INTERRUPTED = 130  # as a shell reports Ctrl-C


class Commands(TyperGroup):
    """Turns our errors, and the system's, into one line on stderr (one a problem) and the error's exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RolloutPipeError as error:
            for line in str(error).splitlines():
                typer.echo(f"error: {line}", err=True)
            raise typer.Exit(error.exit_code) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of our output has left; click ends quietly
                raise
            typer.echo(f"error: {_system_error(error)}", err=True)
            raise typer.Exit(BadInput.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _system_error(error: OSError) -> str:
    """`Permission denied: /root/report.html`"""
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return ": ".join([error.strerror or str(error) or type(error).__name__, *names])


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
    """Entry point `rolloutpipe`. A termination signal unwinds the stack, so that what was started is stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _unwind)
    app()


def _unwind(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)

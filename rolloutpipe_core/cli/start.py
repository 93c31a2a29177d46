"""How a command line starts and fails: errors are lines on stderr with an exit code, signals unwind the stack."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from rolloutpipe_core.errors import BadInput, RolloutPipeError

INTERRUPTED = 130  # as a shell reports Ctrl-C


class Commands(TyperGroup):
    """Several commands, whose errors are lines."""

    def invoke(self, ctx: Any) -> Any:
        return _in_lines(super().invoke, ctx)


class LoneCommand(TyperCommand):
    """A program of one command, whose errors are lines."""

    def invoke(self, ctx: Any) -> Any:
        return _in_lines(super().invoke, ctx)


def start(app: typer.Typer) -> None:
    """Run a command line. A termination signal unwinds the stack, so that what was started is stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _unwind)
    app()


def start_alone(command: Callable[..., None]) -> None:
    """Run a function as a program of its own, for `python -m`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=LoneCommand)(command)
    start(app)


def _in_lines(invoke: Callable[[Any], Any], context: Any) -> Any:
    """Turns our errors, and the system's, into one line on stderr (one a problem) and the error's exit code."""
    try:
        return invoke(context)
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


def _unwind(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)

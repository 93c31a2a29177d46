"""Services are processes of their own: `python -m MODULE CONFIG [--set ...] --name NAME`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn


def service_arguments(module: str, config: Path, overrides: Sequence[str], name: str) -> tuple[str, ...]:
    """The arguments of Python for one service."""
    sets = [part for override in overrides for part in ("--set", override)]
    return ("-m", module, str(config), *sets, "--name", name)


def service_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with one torch thread that does not spin, unless the user says otherwise.

    Two services on one machine whose threads spin at barriers slow one another down many times over.
    """
    return {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1", **environ}


def become(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by Python with these arguments: signals and the exit code are then the service's own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *arguments], service_environment(os.environ))

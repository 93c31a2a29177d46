"""Services are processes of their own: `python -m MODULE CONFIG [--set ...] --name NAME`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rolloutpipe_core.local.state import STATE_FOLDER
from rolloutpipe_core.local.supervise import Child

if TYPE_CHECKING:
    from rolloutpipe_core.config.models import RunConfig


def service_arguments(module: str, config: Path, overrides: Sequence[str], name: str) -> tuple[str, ...]:
    """The arguments of Python for one service."""
    sets = [part for override in overrides for part in ("--set", override)]
    return ("-m", module, str(config), *sets, "--name", name)


def service_children(config: RunConfig, file: Path, overrides: Sequence[str]) -> list[Child]:
    """A run's services, to be started here. The trainer first: when both fail at once, its reason is told."""
    count, logs = config.rollout_workers, Path(STATE_FOLDER) / "logs" / config.run
    workers = ["rollout"] if count == 1 else [f"rollout-{number}" for number in range(count)]
    modules = {"trainer": config.trainer_module} | dict.fromkeys(workers, config.rollout_module)
    return [
        Child(name, (sys.executable, *service_arguments(module, file, overrides, name)), logs / f"{name}.log")
        for name, module in modules.items()
    ]


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

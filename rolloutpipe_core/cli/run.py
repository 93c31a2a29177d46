"""Commands that run something: `quickstart`, `run`, `rollout`, `train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolloutpipe_core.cli.options import ConfigFile, Overrides

if TYPE_CHECKING:
    from rolloutpipe_core.config.models import RunConfig

Report = Annotated[Path, typer.Option("--report", help="Where the report goes; its JSON is written beside it.")]
Name = Annotated[
    str | None, typer.Option("--name", help="Name of this process in the ledger; by default made from host and pid.")
]


def quickstart(
    overrides: Overrides,
    rounds: Annotated[int | None, typer.Option(help="Rounds to run.", show_default="40")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="serial, cgp, cgp+fgd or stream.", show_default="cgp+fgd")
    ] = None,
    report: Report = Path("report.html"),
) -> None:
    """Run a real job here: embedded servers, the pointer walk, rollout and trainer as two processes, a report.

    An unfinished quickstart goes on; a finished one is followed by a new run.
    """
    from importlib.resources import as_file, files

    from rolloutpipe_core.cli.connect import report_paths
    from rolloutpipe_core.cli.job import Job, run_job
    from rolloutpipe_core.cli.names import next_name
    from rolloutpipe_core.config.load import load_config
    from rolloutpipe_core.ledger.runs import list_runs
    from rolloutpipe_core.local.servers import LocalServers

    paths = report_paths(report)
    options = {"schedule.rounds": rounds, "schedule.kind": schedule}
    settings = [*(f"{key}={value}" for key, value in options.items() if value is not None), *overrides]
    with as_file(files("rolloutpipe_configs") / "quickstart.yaml") as file:
        config = load_config(file, settings)
        with LocalServers.start(Path(), die_with_parent=True) as servers:
            runs = list_runs(servers.connections.redis.client(), config.deadlines.redis_s)
            settings.append(f"run={next_name(config, runs)}")
            config = load_config(file, settings)
            run_job(Job(config, file, settings, paths), servers.connections)


def run(
    config: ConfigFile,
    overrides: Overrides,
    local: Annotated[
        bool, typer.Option("--local", help="Start embedded servers for this run; they end with it.")
    ] = False,
    rollout_workers: Annotated[int | None, typer.Option(min=1, help="Rollout workers to start here.")] = None,
    report: Report = Path("report.html"),
) -> None:
    """Run rollout and trainer here, to the end; started again, an unfinished run goes on.

    Redis and S3 come from the environment, or from `rolloutpipe up` in this folder.
    """
    from contextlib import nullcontext

    from rolloutpipe_core.cli.connect import report_paths
    from rolloutpipe_core.cli.job import Job, run_job
    from rolloutpipe_core.config.connections import Connections
    from rolloutpipe_core.local.servers import LocalServers

    paths = report_paths(report)
    workers = [] if rollout_workers is None else [f"rollout_workers={rollout_workers}"]
    settings = [*overrides, *workers]
    loaded = _load_with_warnings(config, settings)
    with LocalServers.start(Path(), die_with_parent=True) if local else nullcontext() as servers:
        run_job(Job(loaded, config, settings, paths), servers.connections if servers else Connections.read())


def rollout(config: ConfigFile, overrides: Overrides, name: Name = None) -> None:
    """Run one rollout worker in this process, for a run over several machines."""
    from rolloutpipe_core.cli.processes import become, service_arguments

    module = _load_with_warnings(config, overrides).rollout_module
    become(service_arguments(module, config, overrides, name or _own_name("rollout")))


def train(config: ConfigFile, overrides: Overrides, name: Name = None) -> None:
    """Run the trainer in this process, for a run over several machines."""
    from rolloutpipe_core.cli.processes import become, service_arguments

    module = _load_with_warnings(config, overrides).trainer_module
    become(service_arguments(module, config, overrides, name or _own_name("trainer")))


def _own_name(role: str) -> str:
    import os
    import socket

    return f"{role}-{socket.gethostname().split('.')[0].lower()}-{os.getpid()}"


def _load_with_warnings(file: Path, overrides: list[str]) -> RunConfig:
    from rolloutpipe_core.config.checks import check
    from rolloutpipe_core.config.load import load_config

    config = load_config(file, overrides)
    for problem in check(config):
        typer.echo(f"{problem.severity}: {problem}", err=True)
    return config

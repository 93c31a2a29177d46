"""`config check` and `config reference`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rolloutpipe_core.cli.options import AsJson, ConfigFile, Overrides

if TYPE_CHECKING:
    from rolloutpipe_core.config.memory import MemoryUse
    from rolloutpipe_core.config.models import RunConfig
    from rolloutpipe_core.config.problems import Problem

app = typer.Typer(help="Look at a configuration.", no_args_is_help=True)

GIB = 2**30


@app.command()
def check(config: ConfigFile, overrides: Overrides, as_json: AsJson = False) -> None:
    """Check a configuration and say how much memory its models need. Exit 2 when it cannot run."""
    from rolloutpipe_core.cli.output import print_json
    from rolloutpipe_core.config.checks import check as cross_checks
    from rolloutpipe_core.config.load import load_config
    from rolloutpipe_core.config.memory import memory_uses
    from rolloutpipe_core.data.models import resolve_model

    run = load_config(config, overrides)
    problems = cross_checks(run)
    uses = memory_uses(run, resolve_model(run.model.path))
    if as_json:
        print_json({"run": run.run, "problems": problems, "memory": [use._asdict() for use in uses]})
    else:
        _print(run, problems, uses)


@app.command()
def reference() -> None:
    """Print docs/configuration.md: every key with its values, default and meaning."""
    from rolloutpipe_core.config.reference import reference as page

    typer.echo(page(), nl=False)


def _print(run: RunConfig, problems: list[Problem], uses: list[MemoryUse]) -> None:
    from rolloutpipe_core.cli.output import console, table

    for problem in problems:
        typer.echo(f"{problem.severity}: {problem}")
    schedule = run.schedule
    typer.echo(
        f"{run.run}: {schedule.kind}, {schedule.rounds} rounds of R={schedule.groups_per_round} groups of "
        f"K={schedule.samples_per_group} samples; U={schedule.groups_per_update} groups an update"
    )
    rows = [(use.service, use.what, f"{use.bytes / GIB:.3f}") for use in uses]
    console().print(table("memory, activations not counted", ("service", "what", "GiB"), rows, numbers=("GiB",)))

"""`bench engine`."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measure.", no_args_is_help=True)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def engine(context: typer.Context) -> None:
    """Measure the rollout engine against plain generation loops; `-- --help` lists what the benchmark takes."""
    from rolloutpipe_core.cli.processes import become

    become(["-m", "rolloutpipe_components.rollout.bench", *context.args])

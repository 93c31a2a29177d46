"""`bench engine`, `bench schedules`, `bench handoff`, `bench frontier`, `bench stack`."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measure.", no_args_is_help=True)
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=PASSED_ON)
def engine(context: typer.Context) -> None:
    """Measure the rollout engine against plain generation loops; `-- --help` lists what the benchmark takes."""
    _become("rolloutpipe_components.rollout.bench", context)


@app.command(context_settings=PASSED_ON)
def schedules(context: typer.Context) -> None:
    """Measure the schedules side by side and against their floor; `-- --help` lists what the benchmark takes."""
    _become("rolloutpipe_benchmarks.schedules", context)


@app.command(context_settings=PASSED_ON)
def handoff(context: typer.Context) -> None:
    """Measure the hand-over of groups, and the readers of a long ledger; `-- --help` lists what the benchmark takes."""
    _become("rolloutpipe_benchmarks.handoff", context)


@app.command(context_settings=PASSED_ON)
def frontier(context: typer.Context) -> None:
    """Measure frontier-group dispatch over SGLang servers, by admission and by their priorities; see `-- --help`."""
    _become("rolloutpipe_benchmarks.sglang_frontier", context)


@app.command(context_settings=PASSED_ON)
def stack(context: typer.Context) -> None:
    """Measure both halves beside bare SGLang and megatron-core; `-- --help` lists what the benchmark takes."""
    _become("rolloutpipe_benchmarks.stack", context)


def _become(module: str, context: typer.Context) -> None:
    from rolloutpipe_core.cli.processes import become

    become(["-m", module, *context.args])

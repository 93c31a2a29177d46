"""How much time the schedules save: real services and servers, side by side, in three regimes, beside their floor.

    rolloutpipe bench schedules [--quick] [--json ROWS.json] [--raw RUNS.jsonl [--resume]]

Rollout and trainer have a core each, with one torch thread; every run is one round from version 0 with the same
seed: keyed noise gives every schedule the same prompts and (but for a last bit of rounding now and then) the same
samples. All times are those of the ledger, as `rolloutpipe report` tells them (docs/timeline.md).
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from rolloutpipe_core.cli.output import console
from rolloutpipe_core.errors import BadInput, RolloutPipeError
from rolloutpipe_core.local.servers import LocalServers

from .plan import GROUPS, QUICK_GROUPS, REGIMES, SLOTS, Regime, cells
from .processes import Cores, ServiceStarter, fork_server
from .records import Records
from .show import render
from .summary import summarise


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Rounds of half the size, once each: ten minutes.")] = False,
    rows_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here, after every run.")] = None,
    raw: Annotated[Path | None, typer.Option(help="Keep every run here, a JSON line each.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the runs in --raw.")] = False,
    regime: Annotated[list[str] | None, typer.Option(help="Only this regime; may be repeated.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Runs of each row.", show_default="3")] = None,
    logs: Annotated[Path | None, typer.Option(help="Keep the servers' and services' files in this folder.")] = None,
) -> None:
    """Measure the schedules side by side and against their floor."""
    try:
        if resume and raw is None:
            raise BadInput("nothing to go on with", given="--resume", expected="--raw FILE with it")
        with tempfile.TemporaryDirectory(prefix="rolloutpipe-bench-") as folder:
            failed = _measure(
                logs or Path(folder), _chosen(regime), quick, repeats or (1 if quick else 3), rows_file, raw, resume
            )
    except RolloutPipeError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit_code) from error
    raise typer.Exit(1 if failed else 0)


def _chosen(names: list[str] | None) -> list[Regime]:
    known = {regime.name: regime for regime in REGIMES}
    if unknown := [name for name in names or [] if name not in known]:
        raise BadInput("no such regime", given=", ".join(unknown), expected=", ".join(known))
    return [regime for regime in REGIMES if not names or regime.name in names]


def _measure(
    folder: Path,
    regimes: list[Regime],
    quick: bool,
    repeats: int,
    rows_file: Path | None,
    raw: Path | None,
    resume: bool,
) -> bool:
    """Returns whether a run failed."""
    cores, context = Cores.choose(os.sched_getaffinity(0)), fork_server()
    os.sched_setaffinity(0, {cores.servers})  # and so the servers, which inherit it
    groups = QUICK_GROUPS if quick else GROUPS
    planned = cells(groups, [regime.name for regime in regimes], quick)
    setting = {
        "groups_per_round": groups,
        "slots": SLOTS,
        "regimes": {regime.name: asdict(regime) for regime in REGIMES},
        "cores": cores.told,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": version("torch"),
    }
    records = Records.resume(setting, raw) if resume and raw else Records.begin(setting, raw)

    def write() -> None:
        if rows_file is not None:
            rows = [row.facts() for row in summarise(planned, records.measured, records.floors)]
            part = rows_file.with_name(rows_file.name + ".part")
            part.write_text(json.dumps(rows, indent=1) + "\n")
            part.replace(rows_file)

    # Imported behind `--help` and bad input: they import torch.
    from .loop import Loop
    from .measure import Bench
    from .model import write_model

    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    console().print(f"{groups} groups of 8 samples, {SLOTS} slots; {cores.told}", highlight=False)
    models = {regime.name: folder / "models" / regime.name for regime in regimes}
    for regime in regimes:
        write_model(regime.shape, 2048, models[regime.name])
    with LocalServers.start(folder, die_with_parent=True) as servers:
        bench = Bench(servers.connections, ServiceStarter(context, folder, cores), models, groups)
        loop = Loop(bench, records, regimes, planned, repeats, _tell, write)
        try:
            loop.run()
        finally:
            rows = summarise(planned, records.measured, records.floors)
            console().print(render(rows, f"one round, medians of {repeats} (least to most); {cores.told}"))
    for failure in loop.failures:
        typer.echo(f"failed: {failure}", err=True)
    return bool(loop.failures)


def _tell(line: str) -> None:
    console().print(line, highlight=False)


if __name__ == "__main__":
    typer.run(main)

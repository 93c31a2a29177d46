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
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from rolloutpipe_core.cli.connect import check_output
from rolloutpipe_core.cli.output import console
from rolloutpipe_core.cli.start import start_alone
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.local.servers import LocalServers
from rolloutpipe_core.scratch import scratch_folder

from .loop import Loop
from .measure import Bench, Inputs
from .plan import GROUPS, QUICK_GROUPS, REGIMES, SLOTS, Cell, Regime, cells
from .processes import Cores, ServiceStarter, fork_server
from .records import Records
from .show import render
from .summary import summarise


@dataclass(frozen=True, slots=True)
class Options:
    regimes: list[Regime]
    groups: int  # R
    repeats: int
    planned: list[Cell]
    rows_file: Path | None
    raw: Path | None
    resume: bool
    logs: Path | None


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Rounds of half the size, once each: ten minutes.")] = False,
    rows_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here, after every run.")] = None,
    raw: Annotated[Path | None, typer.Option(help="Keep every run here, a JSON line each.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the runs in --raw.")] = False,
    regime: Annotated[list[str] | None, typer.Option(help="Only this regime; may be repeated.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Runs of each row.", show_default="3")] = None,
    logs: Annotated[Path | None, typer.Option(help="Keep the services' logs in this folder.")] = None,
) -> None:
    """Measure the schedules side by side and against their floor."""
    if resume and raw is None:
        raise BadInput("nothing to go on with", given="--resume", expected="--raw FILE with it")
    for what, file, example in (("rows", rows_file, "schedules.json"), ("runs", raw, "schedules.jsonl")):
        if file is not None:
            check_output(f"file of {what}", file, example)
    groups, regimes = QUICK_GROUPS if quick else GROUPS, _chosen(regime)
    planned = cells(groups, [regime.name for regime in regimes], quick)
    repeats = repeats or (1 if quick else 3)
    options = Options(regimes, groups, repeats, planned, rows_file, raw, resume, logs)
    with scratch_folder() as folder:
        failures = _measure(options, folder)
    for failure in failures:
        typer.echo(f"failed: {failure}", err=True)
    raise typer.Exit(1 if failures else 0)


def _chosen(names: list[str] | None) -> list[Regime]:
    known = {regime.name: regime for regime in REGIMES}
    if unknown := [name for name in names or [] if name not in known]:
        raise BadInput("no such regime", given=", ".join(unknown), expected=", ".join(known))
    return [regime for regime in REGIMES if not names or regime.name in names]


def _measure(options: Options, folder: Path) -> list[str]:
    """Measure and print the table, also when interrupted; returns what failed."""
    cores, context = Cores.choose(os.sched_getaffinity(0)), fork_server()
    os.sched_setaffinity(0, {cores.servers})  # and so the servers, which inherit it
    setting = _setting(options.groups, cores)
    resumed = options.raw if options.resume else None
    records = Records.resume(setting, resumed) if resumed else Records.begin(setting, options.raw)
    logs = (options.logs or folder / "logs").resolve()
    console().print(f"{options.groups} groups of 8 samples, {SLOTS} slots; {cores.told}", highlight=False)
    inputs = {regime.name: _inputs(regime, options.groups, folder) for regime in options.regimes}
    with LocalServers.start(folder, die_with_parent=True) as servers:
        bench = Bench(servers.connections, ServiceStarter(context, folder, logs, cores), inputs, options.groups)
        loop = Loop(
            bench, records, options.regimes, options.planned, options.repeats, _tell, lambda: _write(options, records)
        )
        try:
            loop.run()
        finally:
            rows = summarise(options.planned, records.measured, records.floors)
            title = f"one round, medians of {options.repeats} (least to most); {cores.told}"
            console().print(render(rows, title))
    return loop.failures


def _setting(groups: int, cores: Cores) -> dict[str, Any]:
    """What runs must have in common to be compared."""
    return {
        "groups_per_round": groups,
        "slots": SLOTS,
        "regimes": {regime.name: asdict(regime) for regime in REGIMES},
        "cores": cores.told,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": version("torch"),
    }


def _inputs(regime: Regime, groups: int, folder: Path) -> Inputs:
    from .model import write_model, write_prompts  # imports torch: not for `--help`

    inputs = Inputs(folder / regime.name, folder / f"{regime.name}.jsonl")
    write_model(regime.shape, regime.prompt_tokens + regime.max_new_tokens, inputs.model)
    write_prompts(regime.prompt_tokens, groups, inputs.prompts)
    return inputs


def _write(options: Options, records: Records) -> None:
    """The rows so far, in one piece or not at all."""
    if options.rows_file is not None:
        rows = [row.facts() for row in summarise(options.planned, records.measured, records.floors)]
        part = options.rows_file.with_name(options.rows_file.name + ".part")
        part.write_text(json.dumps(rows, indent=1) + "\n")
        part.replace(options.rows_file)


def _tell(line: str) -> None:
    console().print(line, highlight=False)


if __name__ == "__main__":
    start_alone(main)

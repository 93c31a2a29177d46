"""`python -m rolloutpipe_benchmarks.handoff [--quick] [--groups N] [--json FILE] [--markdown FILE]`."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from rolloutpipe_core.cli.connect import check_output
from rolloutpipe_core.cli.output import console
from rolloutpipe_core.cli.start import start_alone
from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.local.servers import LocalServers
from rolloutpipe_core.scratch import scratch_folder

from .handover import Latency, Sender, Throughput, busy_cores, measure_latency, measure_throughput
from .long_ledger import measure_long_ledger
from .real_run import measure_run
from .report import Report, markdown, view

PAUSE_S = {"idle": 0.05, "both cores busy": 0.1}
"""Between two groups whose latency is measured: none waits for another."""
WARM_UP = 20
AT_ONCE = 8
SCHEDULES = ("stream", "cgp")


@dataclass(frozen=True, slots=True)
class Sizes:
    latency_groups: int
    throughput_groups: int
    turns: int
    run_groups: int  # a round of the real runs
    run_rounds: int  # measured, behind one to warm up
    ledger_groups: int


FULL = Sizes(300, 300, 7, 256, 2, 100_000)
QUICK = Sizes(60, 100, 3, 32, 1, 2_000)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A minute instead of ten, with small numbers.")] = False,
    groups: Annotated[int | None, typer.Option(min=1, help="Groups of the long ledger.", show_default="100000")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here, too.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write the tables here, too.")] = None,
) -> None:
    """Measure the hand-over of groups, and the readers of a long ledger."""
    torch.set_num_threads(1)
    sizes = QUICK if quick else FULL
    for file, example in ((json_file, "handoff.json"), (markdown_file, "handoff.md")):
        if file is not None:
            check_output("report", file, example)
    with scratch_folder() as folder:
        report = measure(folder, sizes, groups or sizes.ledger_groups)
    console().print(view(report))
    if json_file is not None:
        json_file.write_text(json.dumps(asdict(report), indent=1) + "\n")
    if markdown_file is not None:
        markdown_file.write_text(markdown(report))


def measure(folder: Path, sizes: Sizes, ledger_groups: int) -> Report:
    """Everything, on embedded servers of its own."""
    with LocalServers.start(folder, die_with_parent=True) as servers:
        connections = servers.connections
        latency, throughput = _hand_overs(connections, sizes)
        runs = []
        for kind in SCHEDULES:
            _tell(f"a real run of {1 + sizes.run_rounds} rounds, {kind}")
            name = f"handoff-{kind.replace('+', '-')}"
            settings = (f"run={name}", f"schedule.kind={kind}", f"schedule.groups_per_round={sizes.run_groups}")
            runs.append(measure_run(connections, folder, "quickstart.yaml", settings, sizes.run_rounds))
        _tell(f"a ledger of {ledger_groups} groups")
        ledger = measure_long_ledger(connections, folder, ledger_groups)
    return Report(_machine(), latency, throughput, runs, ledger)


def _hand_overs(connections: Connections, sizes: Sizes) -> tuple[dict[str, Latency], Throughput]:
    _tell("latency, idle")
    with Sender(connections) as sender:
        measure_latency(connections, sender, WARM_UP, PAUSE_S["idle"])
        latency = {"idle": measure_latency(connections, sender, sizes.latency_groups, PAUSE_S["idle"])}
        _tell("throughput")
        throughput = measure_throughput(connections, sender, sizes.throughput_groups, AT_ONCE, sizes.turns)
        _tell("latency, both cores busy")
        with busy_cores():
            busy = "both cores busy"
            latency[busy] = measure_latency(connections, sender, sizes.latency_groups, PAUSE_S[busy])
    return latency, throughput


def _machine() -> dict[str, str]:
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def _tell(what: str) -> None:
    typer.echo(what, err=True)


if __name__ == "__main__":
    start_alone(main)

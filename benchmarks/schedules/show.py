"""Rows as a table for the terminal and as Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rolloutpipe_core.cli.output import table
from rolloutpipe_core.cli.start import start_alone

from .plan import GROUPS, cells
from .records import Records
from .summary import Row, summarise

COLUMNS = {
    "regime": "regime",
    "groups_per_update": "U",
    "schedule": "schedule",
    "frontier_width": "F_w",
    "rollout_to_train_end_s": "time s",
    "ratio_to_serial": "/ serial",
    "ratio_to_floor": "/ floor",
    "waiting_ratio_eq4": "wait eq. 4",
    "waiting_ratio_s51": "wait s. 5.1",
    "first_dispatch_s": "first s",
    "round_period_s": "period s",
}
PLACES = {"rollout_to_train_end_s": 1, "first_dispatch_s": 1, "round_period_s": 1}
WITH_SPREAD = ("rollout_to_train_end_s", "ratio_to_serial", "ratio_to_floor")


def render(rows: Sequence[Row], title: str) -> Table:
    """Medians; least and most of the repeats beside the times and ratios."""
    lines = _lines(rows)
    words = {"regime", "schedule"}
    return table(title, [*COLUMNS.values()], lines, {text for name, text in COLUMNS.items() if name not in words})


def markdown(rows: Sequence[Row]) -> str:
    """The same as a Markdown table."""
    lines = ["| " + " | ".join(COLUMNS.values()) + " |", "|---|---:|---|" + "---:|" * (len(COLUMNS) - 3)]
    return "\n".join([*lines, *("| " + " | ".join(line) + " |" for line in _lines(rows))])


def _lines(rows: Sequence[Row]) -> list[list[str]]:
    return [[_told(row, name) for name in COLUMNS] for row in rows]


def _told(row: Row, name: str) -> str:
    median = _number(name, row.facts()[name])
    if name not in WITH_SPREAD or name not in row.measures or row.repeats == 1:
        return median
    spread = row.measures[name]
    return f"{median} ({_number(name, spread.least)} to {_number(name, spread.most)})"


def _number(name: str, value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.{PLACES.get(name, 2)}f}" if isinstance(value, float) else str(value)


def main(runs: Annotated[Path, typer.Argument(help="What `bench schedules --raw` kept.")]) -> None:
    """Print the runs as a Markdown table, a row for each schedule."""
    records = Records.read(runs)
    groups = records.setting["groups_per_round"]
    planned = cells(groups, list(records.setting["regimes"]), quick=groups < GROUPS)
    typer.echo(markdown(summarise(planned, records.measured, records.floors)))


if __name__ == "__main__":
    start_alone(main)

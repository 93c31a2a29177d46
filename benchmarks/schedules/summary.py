"""From runs to rows: medians over the repeats, and how far the repeats lie apart. Pure.

A ratio is the median of the ratios within a repeat, so that a change in the machine's load meets both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .plan import Cell

TIME = "rollout_to_train_end_s"
MEASURES = (
    TIME,
    "ratio_to_serial",
    "ratio_to_floor",
    "waiting_ratio_eq4",
    "waiting_ratio_s51",
    "first_dispatch_s",
    "round_period_s",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a cell."""

    cell: Cell
    repeat: int
    metrics: Mapping[str, Any]  # RoundMetrics by field


@dataclass(frozen=True, slots=True)
class Floor:
    """What one recorded rollout and the replay beside it say of a regime's floor."""

    regime: str
    groups_per_update: int
    repeat: int
    floor_s: float
    rollout_s: float  # until the last group was announced
    training_s: float  # compute of the replay


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Row:
    """A cell over its repeats; a measure that no repeat has is left out."""

    cell: Cell
    repeats: int
    measures: Mapping[str, Spread]

    def facts(self) -> dict[str, Any]:
        """The row as it is written: medians alone."""
        values = {name: self.measures[name].median if name in self.measures else None for name in MEASURES}
        return {
            "regime": self.cell.regime,
            "groups_per_update": self.cell.groups_per_update,
            "schedule": self.cell.schedule,
            "frontier_width": self.cell.frontier_width,
            **{name: None if value is None else round(value, 4) for name, value in values.items()},
        }


def summarise(cells: Sequence[Cell], measured: Sequence[Measured], floors: Sequence[Floor]) -> list[Row]:
    """A row for every cell that was measured, in the order of `cells`."""
    serial = {_place(run): run.metrics[TIME] for run in measured if run.cell.schedule == "serial"}
    floor = {(floor.regime, floor.groups_per_update, floor.repeat): floor.floor_s for floor in floors}
    rows = []
    for cell in cells:
        runs = [run for run in measured if run.cell == cell]
        ratios = {"ratio_to_serial": _ratios(runs, serial), "ratio_to_floor": _ratios(runs, floor)}
        values = {name: ratios.get(name) or [run.metrics.get(name) for run in runs] for name in MEASURES}
        spreads = {name: spread for name, found in values.items() if (spread := spread_of(found))}
        if runs:
            rows.append(Row(cell, len(runs), spreads))
    return rows


def spread_of(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(median(known), min(known), max(known)) if known else None


def _place(run: Measured) -> tuple[str, int, int]:
    return run.cell.regime, run.cell.groups_per_update, run.repeat


def _ratios(runs: Sequence[Measured], to: Mapping[tuple[str, int, int], float]) -> list[float | None]:
    return [run.metrics[TIME] / to[_place(run)] if _place(run) in to else None for run in runs]

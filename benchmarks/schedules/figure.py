"""The picture of a benchmark, from what `bench schedules --json` wrote: one panel a regime and U, one bar a schedule.

python -m rolloutpipe_benchmarks.schedules.figure ROWS.json OUT.svg
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from rolloutpipe_core.cli.start import start_alone
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.observe.svg import Scale, element, figure, label, tip

from .show import COLUMNS as FACTS

WIDTH = 1110
COLUMNS = 2  # panels beside one another: U=2 and U=R
PANEL = WIDTH / COLUMNS
NAMES, ENDS = 130, 145  # left of the bars, and right of the longest
HEAD, BAR, GAP, FOOT = 34, 17, 6, 34
TOP = 62

Rows = Sequence[dict[str, Any]]


def draw(rows: Rows) -> str:
    """A standalone SVG. Bars of one regime share a scale; the dashed line is the regime's floor."""
    parts = [
        label(16, 26, "Rollout start to the end of training, one round", "title"),
        *_legend(16, 46),
    ]
    y = float(TOP)
    for _, regime in groupby(rows, key=lambda row: row["regime"]):
        panels = [list(panel) for _, panel in groupby(regime, key=lambda row: row["groups_per_update"])]
        longest = max(row["rollout_to_train_end_s"] for panel in panels for row in panel)
        for column, panel in enumerate(panels):
            parts += _panel(panel, column * PANEL, y, longest)
        y += HEAD + FOOT + (BAR + GAP) * max(map(len, panels))
    return figure(WIDTH, round(y), *parts, name="Time of a round by schedule", standalone=True)


def _legend(x: float, y: float) -> Iterator[str]:
    entries = [("hatch", "the trainer waits"), ("train", "the trainer computes")]
    for place, (kind, words) in enumerate(entries):
        yield element("rect", x=x + place * 150, y=y - 9, width=12, height=10, class_=kind)
        yield label(x + place * 150 + 18, y, words)
    yield element("line", x1=x + 302, y1=y - 10, x2=x + 302, y2=y + 2, class_="mark")
    yield label(x + 310, y, "floor: no schedule of the trainer is faster with these arrivals")


def _panel(rows: Rows, x: float, y: float, longest: float) -> Iterator[str]:
    scale = Scale(0, longest, x + NAMES, x + PANEL - ENDS)
    bottom = y + HEAD + (BAR + GAP) * len(rows)
    yield label(x + 16, y + 20, f"{rows[0]['regime']}, U = {rows[0]['groups_per_update']}", "strong")
    for tick in scale.ticks():
        yield element("line", x1=scale(tick), y1=y + HEAD - 4, x2=scale(tick), y2=bottom, class_="grid")
        yield label(scale(tick), bottom + 14, f"{tick:g} s", "middle")
    for place, row in enumerate(rows):
        yield from _bar(row, scale, x, y + HEAD + (BAR + GAP) * place)
    floor = floor_of(rows)
    if floor is not None:
        yield element("line", x1=scale(floor), y1=y + HEAD - 6, x2=scale(floor), y2=bottom, class_="mark")


def _bar(row: dict[str, Any], scale: Scale, x: float, y: float) -> Iterator[str]:
    total = row["rollout_to_train_end_s"]
    waited = total * row["waiting_ratio_s51"]
    name = row["schedule"] + (f" F_w={row['frontier_width']}" if row["frontier_width"] else "")
    said = f"{total:.1f} s" + (f", {row['ratio_to_serial']:.2f} of serial" if row["ratio_to_serial"] else "")
    yield label(x + NAMES - 8, y + 12, name, "right")
    yield element("rect", x=scale(0), y=y, width=scale(waited) - scale(0), height=BAR, class_="hatch")
    yield element(
        "rect", tip(f"{name}: {said}"), x=scale(waited), y=y, width=scale(total) - scale(waited), height=BAR,
        class_="train",
    )  # fmt: skip
    yield label(scale(total) + 6, y + 12, said)


def floor_of(rows: Rows) -> float | None:
    """Seconds, from the row of `stream`: the floor is that of its admission order."""
    for row in rows:
        if row["schedule"] == "stream" and row["ratio_to_floor"]:
            return float(row["rollout_to_train_end_s"] / row["ratio_to_floor"])
    return None


def read_rows(file: Path) -> Rows:
    """What `bench schedules --json` wrote. Raises BadInput when it is something else, or has no row."""
    try:
        rows = [{name: row[name] for name in FACTS} for row in json.loads(file.read_text())]
    except (ValueError, KeyError, TypeError, AttributeError):
        rows = []
    if not rows:
        raise BadInput("no rows of a benchmark", given=str(file), expected="what `bench schedules --json` wrote")
    return rows


def main(
    rows: Annotated[Path, typer.Argument(help="What `bench schedules --json` wrote.")],
    out: Annotated[Path, typer.Argument(help="The SVG to write.")],
) -> None:
    """Draw the picture."""
    out.write_text(draw(read_rows(rows)))


if __name__ == "__main__":
    start_alone(main)

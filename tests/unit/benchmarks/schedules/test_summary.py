from __future__ import annotations

from pathlib import Path

import pytest
from rolloutpipe_benchmarks.schedules.figure import draw, floor_of
from rolloutpipe_benchmarks.schedules.plan import Cell
from rolloutpipe_benchmarks.schedules.records import Records
from rolloutpipe_benchmarks.schedules.show import markdown
from rolloutpipe_benchmarks.schedules.summary import Floor, Measured, summarise

from rolloutpipe_core.errors import BadInput

SERIAL, STREAM = Cell("balanced", 2, "serial", None), Cell("balanced", 2, "stream", 4)


def run(cell: Cell, repeat: int, seconds: float) -> Measured:
    metrics = {
        "rollout_to_train_end_s": seconds,
        "waiting_ratio_eq4": 0.25,
        "waiting_ratio_s51": 0.5,
        "first_dispatch_s": 3.0,
        "round_period_s": seconds + 1,
    }
    return Measured(cell, repeat, metrics)


RUNS = [run(SERIAL, 0, 40.0), run(SERIAL, 1, 50.0), run(STREAM, 0, 30.0), run(STREAM, 1, 25.0)]
FLOORS = [Floor("balanced", 2, 0, 24.0, 20.0, 19.0), Floor("balanced", 2, 1, 25.0, 20.0, 19.0)]


def test_rows_are_medians_and_ratios_are_those_within_a_repeat() -> None:
    stream = summarise([SERIAL, STREAM], RUNS, FLOORS)[1]
    assert stream.facts() == {
        "regime": "balanced",
        "groups_per_update": 2,
        "schedule": "stream",
        "frontier_width": 4,
        "rollout_to_train_end_s": 27.5,
        "ratio_to_serial": 0.625,  # of 30/40 and 25/50
        "ratio_to_floor": 1.125,  # of 30/24 and 25/25
        "waiting_ratio_eq4": 0.25,
        "waiting_ratio_s51": 0.5,
        "first_dispatch_s": 3.0,
        "round_period_s": 28.5,
    }
    assert (stream.measures["ratio_to_serial"].least, stream.measures["ratio_to_serial"].most) == (0.5, 0.75)


def test_what_was_not_measured_is_missing_and_no_row_is_made_up() -> None:
    (stream,) = summarise([SERIAL, STREAM], RUNS[2:3], [])
    facts = stream.facts()
    assert facts["rollout_to_train_end_s"] == 30.0
    assert facts["ratio_to_serial"] is None
    assert facts["ratio_to_floor"] is None


def test_runs_of_a_stopped_benchmark_are_found_again(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    records = Records.begin({"slots": 64}, file)
    for entry in (*RUNS[:3], FLOORS[0]):
        records.add(entry)
    found = Records.resume({"slots": 64}, file)
    assert (found.measured, found.floors) == (RUNS[:3], FLOORS[:1])
    assert found.has(STREAM, 0)
    assert not found.has(STREAM, 1)
    assert found.has_floor("balanced", 2, 0)
    with pytest.raises(BadInput, match="slots was 64, is 32"):
        Records.resume({"slots": 32}, file)


def test_markdown_has_a_line_for_every_row() -> None:
    lines = markdown(summarise([SERIAL, STREAM], RUNS, FLOORS)).splitlines()
    assert len(lines) == 4
    spread = "27.5 (25.0 to 30.0) | 0.62 (0.50 to 0.75) | 1.12 (1.00 to 1.25)"
    assert lines[-1] == f"| balanced | 2 | stream | 4 | {spread} | 0.25 | 0.50 | 3.0 | 28.5 |"


def test_the_picture_shows_every_row_and_the_floor() -> None:
    rows = [row.facts() for row in summarise([SERIAL, STREAM], RUNS, FLOORS)]
    assert floor_of(rows) == pytest.approx(27.5 / 1.125)
    svg = draw(rows)
    assert svg.count('class="train"') == 3, "two bars and the legend"
    assert "stream F_w=4" in svg
    assert "27.5 s, 0.62 of serial" in svg

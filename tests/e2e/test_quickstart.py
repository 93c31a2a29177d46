"""`quickstart` from an empty folder, and every reading command on what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutpipe_core.local.state import read_servers

SMALL = ("schedule.groups_per_round=4", "schedule.samples_per_group=4", "schedule.update_batch_size=8")
MEASURES = (
    "round",
    "weight_version",
    "reward_mean",
    "rollout_to_train_end_s",
    "round_period_s",
    "waiting_ratio_eq4",
    "waiting_ratio_s51",
    "first_dispatch_s",
)


def rolloutpipe(folder: Path, *arguments: str) -> str:
    """What the command prints; it must succeed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLOUTPIPE", "AWS"))}
    main = "from rolloutpipe_core.cli.main import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", main, *arguments], cwd=folder, env=kept, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr + result.stdout
    return result.stdout


def quickstart(folder: Path) -> str:
    return rolloutpipe(folder, "quickstart", "--rounds", "2", *(part for key in SMALL for part in ("--set", key)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a quickstart ran, with its servers up again."""
    folder = tmp_path_factory.mktemp("quickstart")
    shown = quickstart(folder)
    assert shown.count("\nround 1: reward ") == 1
    assert read_servers(folder) is None
    rolloutpipe(folder, "up")
    yield folder
    rolloutpipe(folder, "down")


def test_the_report_has_every_round_in_numbers_and_as_a_page(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    assert [row["round"] for row in report["rounds"]] == [0, 1]
    for row in report["rounds"]:
        assert all(row[name] is not None for name in MEASURES), row
    page = (folder / "report.html").read_text()
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org/", "") and "https://" not in page


@pytest.mark.parametrize("words", ["status", "groups", "show r000001-g0003", "why r000001-g0003", "audit", "timeline"])
def test_reading_commands_speak_to_people_and_to_programs(folder: Path, words: str) -> None:
    assert rolloutpipe(folder, *words.split()).strip()
    assert json.loads(rolloutpipe(folder, *words.split(), "--json"))


def test_what_they_tell_is_the_run(folder: Path) -> None:
    def told(*arguments: str) -> Any:
        return json.loads(rolloutpipe(folder, *arguments, "--json"))

    status = told("status", "walk-quickstart")
    assert (status["version"], status["round"], status["groups"]["trained"]) == (2, 1, 4)
    assert {group["state"] for group in told("groups", "--round", "0")["groups"]} == {"trained"}
    assert len(told("show", "r000000-g0000")["sample_list"]) == 4
    assert told("why", "r000000-g0000")["verdict"] == "r000000-g0000 was trained, with the first attempt"
    audit = told("audit")
    assert (audit["passed"], audit["commits"], audit["groups_trained"]) == (True, 3, 8)
    assert [entry["metrics"]["round"] for entry in told("timeline", "--last", "2")] == [0, 1]
    assert told("report")["rounds"] == json.loads((folder / "report.json").read_text())["rounds"]


def test_a_finished_quickstart_is_followed_by_a_new_run(folder: Path) -> None:
    quickstart(folder)
    assert json.loads(rolloutpipe(folder, "status", "--json"))["run"] == "walk-quickstart-2"
    assert json.loads(rolloutpipe(folder, "audit", "walk-quickstart-2", "--json"))["passed"]

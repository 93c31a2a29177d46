"""Programs of their own (`python -m`): bad input is one line on stderr and exit code 2, told before any work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rolloutpipe_core.cli.start import LoneCommand
from rolloutpipe_core.errors import Fenced

SCHEDULES, SHOW = "rolloutpipe_benchmarks.schedules", "rolloutpipe_benchmarks.schedules.show"
FIGURE = "rolloutpipe_benchmarks.schedules.figure"
HANDOFF, STACK = "rolloutpipe_benchmarks.handoff", "rolloutpipe_benchmarks.stack"


@pytest.mark.parametrize(
    "arguments",
    [
        [SCHEDULES, "--json", "none/rows.json"],
        [SCHEDULES, "--raw", "."],
        [SCHEDULES, "--resume"],
        [SCHEDULES, "--resume", "--raw", "none.jsonl"],
        [SCHEDULES, "--regime", "easy"],
        [HANDOFF, "--json", "none/handoff.json"],
        [HANDOFF, "--markdown", "."],
        [STACK, "--json", "none/stack.json"],
        [STACK, "--python", "none/python"],
        ["rolloutpipe_components.rollout.bench", "--json", "none/engine.json"],
        [SHOW, "none.json"],
        [SHOW, "other.json"],
        [FIGURE, "list.json", "rows.svg"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(arguments: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "list.json").write_text('[{"regime": "balanced"}]')
    before = sorted(tmp_path.iterdir())
    result = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (Fenced("replaced", given="epoch 3"), 4, "error: replaced; given: epoch 3\n"),
        (PermissionError(13, "Permission denied", "a.json"), 2, "error: Permission denied: a.json\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_a_command_ends(raised: BaseException, code: int, told: str) -> None:
    app = typer.Typer()

    @app.command(cls=LoneCommand)
    def fail() -> None:
        raise raised

    result = CliRunner().invoke(app)
    assert (result.exit_code, result.stderr) == (code, told)

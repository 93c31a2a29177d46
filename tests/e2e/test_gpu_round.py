"""The GPU benchmark, on a CPU: both schedules are measured, and what is told makes sense."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_round.py"


def test_both_schedules_are_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--sizes", "tiny", "--new-tokens", "6"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "rows.json")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["model"], row["schedule"]) for row in rows] == [("tiny", "serial"), ("tiny", "stream")]
    for row in rows:
        assert 0 < row["rollout_s"] < row["seconds"]
        assert 0 < row["handoff_p50_s"] <= row["handoff_max_s"] < row["seconds"]
        assert 0 <= row["handoff_share"] < 1
        assert 0 <= row["mismatch_kl"] <= row["mismatch_max"] < 0.1, "bfloat16 rounds"
    assert "| rollout (tokens/s) |" in done.stdout


def test_without_a_gpu_it_says_what_to_do() -> None:
    command = [sys.executable, str(SCRIPT), "--device", "cuda:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "no CUDA device is here" in done.stderr and "--device cpu" in done.stderr

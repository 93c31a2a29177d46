"""A round on one GPU: `torch` engine and `torch` trainer on a Qwen3 with random weights, `serial` against `stream`.

    python -m pip install --no-deps --no-build-isolation -e .   # once, where torch, transformers, pyarrow, pydantic are
    python benchmarks/gpu_round.py --json gpu-round.json

    here ──"round 1, stream"──> rollout process ──a reference a group──> here ──> trainer process
                                      └─────────── groups as files in a folder ───────────┘

No server is needed: for this script alone the FIFO is a pair of pipes and the object store a folder. Engine, trainer,
gate, group files and the schedule's decisions are the services' own. Both processes have the one GPU: what `stream`
overlaps competes for it.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from rolloutpipe_benchmarks.gpu.setup import DEADLINE_S, SIZES, Lines, weights_of, write_model

WARM_UP_TOKENS = 8
SCHEDULES = ("serial", "stream")
ROWS = {
    "seconds": "rollout to train end (s)",
    "rollout_s": "rollout (s)",
    "rollout_tokens_s": "rollout (tokens/s)",
    "busy_s": "training (s)",
    "trained_tokens_s": "training (trained tokens/s)",
    "rollout_memory_gib": "rollout's peak memory (GiB)",
    "trainer_memory_gib": "trainer's peak memory (GiB)",
    "handoff_p50_s": "hand-off, p50 (s)",
    "handoff_max_s": "hand-off, longest (s)",
    "handoff_share": "hand-off on the critical path (share of the round)",
    "weights_s": "writing the next weights (s)",
    "mismatch_kl": "mismatch, KL (nats)",
    "mismatch_mean": "mismatch, mean (nats)",
    "mismatch_max": "mismatch, largest (nats)",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A process of the measurement."""

    process: subprocess.Popen[str]
    lines: Lines

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Its next line. Raises SystemExit when it has ended instead."""
        line: dict[str, Any] | None = self.lines.wait()
        if line is None:
            raise SystemExit(f"{self.process.args!r} ended with status {self.process.wait()}")
        return line


@contextmanager
def part(name: str, folder: Path, device: str) -> Iterator[Part]:
    command = [sys.executable, "-m", f"rolloutpipe_benchmarks.gpu.{name}", str(folder), device]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Part(process, Lines(process.stdout))
    finally:
        process.kill()
        process.wait()


def play(rollout: Part, trainer: Part, round: int, schedule: str, new_tokens: int) -> dict[str, float]:
    """One round; returns what was measured, by the names of ROWS."""
    order = {"round": round, "schedule": schedule, "new_tokens": new_tokens}
    for each in (rollout, trainer):
        each.send(order)
    for each in (rollout, trainer):
        each.receive()  # ready: weights are loaded
    rollout.send({"begin": round})
    while "drained" not in (line := rollout.receive()):
        trainer.send(line)
    trainer.send(line)
    rolled, trained = line["drained"], trainer.receive()["trained"]
    seconds = trained["ended"] - rolled["began"]
    return {
        "seconds": seconds,
        "rollout_s": rolled["rollout_s"],
        "rollout_tokens_s": rolled["tokens"] / rolled["rollout_s"],
        "trained_tokens_s": trained["tokens"] / trained["busy_s"],
        "rollout_memory_gib": rolled["memory_gib"],
        "trainer_memory_gib": trained["memory_gib"],
        "handoff_share": trained["blocked_s"] / seconds,
        **{name: value for name, value in trained.items() if name in ROWS},
    }


def measure(size: str, options: argparse.Namespace, until: float) -> list[dict[str, Any]]:
    """Rounds of one size, the schedules in turn, until all repeats are done or time is up."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters = write_model(size, options.device, weights_of(folder, 0))
        turns = [(schedule, repeat) for repeat in range(options.repeats) for schedule in SCHEDULES]
        with part("rolling", folder, options.device) as rollout, part("training", folder, options.device) as trainer:
            play(rollout, trainer, 0, "serial", WARM_UP_TOKENS)
            for round, (schedule, repeat) in enumerate(turns, start=1):
                if time.monotonic() > until:
                    sys.stderr.write(f"{size}: time is up before {schedule}, repeat {repeat + 1}\n")
                    break
                measured = play(rollout, trainer, round, schedule, options.new_tokens)
                shutil.rmtree(weights_of(folder, round))
                rows.append({"model": size, "parameters": parameters, "schedule": schedule, **measured})
                sys.stderr.write(f"{size}, {schedule}, repeat {repeat + 1}: {measured['seconds']:.1f} s\n")
    return rows


def table(rows: Sequence[dict[str, Any]], title: str) -> str:
    """Medians as Markdown: a column for each model and schedule."""
    columns = list(dict.fromkeys((row["model"], row["schedule"]) for row in rows))
    head = ["", *(f"{model}, {schedule}" for model, schedule in columns)]
    lines = [title, "", f"| {' | '.join(head)} |", f"|---|{'---:|' * len(columns)}"]
    for name, told in ROWS.items():
        cells = [
            [row[name] for row in rows if (row["model"], row["schedule"]) == column and name in row]
            for column in columns
        ]
        lines.append(f"| {told} | {' | '.join(f'{median(cell):.4g}' if cell else '' for cell in cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="A round on one GPU, serial against stream.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["0.6B", "1.7B"])
    parser.add_argument("--new-tokens", type=int, default=512, help="longest response")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=DEADLINE_S, help="begin no round after this time")
    parser.add_argument("--json", type=Path, help="write the rows here, too")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("no CUDA device is here; try it on a CPU with --device cpu --sizes tiny --new-tokens 16")
    until = time.monotonic() + options.seconds
    rows = [row for size in options.sizes for row in measure(size, options, until)]
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.processor() or "CPU"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}"
    sys.stdout.write(table(rows, f"{device}; {versions}; up to {options.new_tokens} new tokens") + "\n")
    if options.json is not None:
        facts = {"device": device, "versions": versions, "new_tokens": options.new_tokens}
        options.json.write_text(json.dumps([{**facts, **row} for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()

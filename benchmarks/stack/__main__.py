"""`python -m rolloutpipe_benchmarks.stack [--python INTERPRETER] [--quick] [--json FILE] [--markdown FILE]`."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from rolloutpipe_core.cli.connect import check_output
from rolloutpipe_core.cli.output import console
from rolloutpipe_core.cli.start import start_alone
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.local.servers import LocalServers
from rolloutpipe_core.scratch import scratch_folder

from ..handoff.real_run import measure_run
from ..schedules.model import write_model
from ..schedules.plan import Shape as ModelShape
from . import rollout_half, trainer_half
from .pairs import Pair, Paired
from .report import Report, markdown, view
from .rollout_half import Shape
from .trainer_half import Updates

MODEL = ModelShape(vocabulary=96, hidden=256, intermediate=768, layers=4, heads=4, kv_heads=2, head_size=64)
POSITIONS = 512
FULL = Shape(groups=32, samples=8, slots=64, turns=7)
QUICK = Shape(groups=16, samples=8, slots=64, turns=3)
FULL_UPDATES = Updates(groups=8, samples=8, longest=96, each=4, turns=15)
QUICK_UPDATES = Updates(groups=8, samples=8, longest=96, each=2, turns=3)
FULL_ROUNDS, QUICK_ROUNDS = 4, 2  # real rounds of so many groups each:
FULL_GROUPS, QUICK_GROUPS = 128, 16


def main(
    python: Annotated[str, typer.Option(help="Interpreter of SGLang's environment.")] = ".venv-sglang/bin/python",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer groups and turns.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here, too.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write the tables here, too.")] = None,
) -> None:
    """Measure both halves beside their bare engines, and the hand-over in real rounds of the whole stack."""
    torch.set_num_threads(1)
    for file, example in ((json_file, "stack.json"), (markdown_file, "stack.md")):
        if file is not None:
            check_output("report", file, example)
    interpreter = shutil.which(python)
    if interpreter is None:
        raise BadInput("no such interpreter", given=python, remedy="on a CPU: infra/sglang-cpu/install")
    shape, updates = (QUICK, QUICK_UPDATES) if quick else (FULL, FULL_UPDATES)
    rounds, groups = (QUICK_ROUNDS, QUICK_GROUPS) if quick else (FULL_ROUNDS, FULL_GROUPS)
    with scratch_folder() as folder, LocalServers.start(folder, die_with_parent=True) as servers:
        model = str(folder / "model")
        write_model(MODEL, POSITIONS, Path(model))
        _tell("rollout over SGLang")
        rollout = asyncio.run(rollout_half.measure(servers.connections, folder, interpreter, model, shape))
        _tell("updates in megatron-core")
        trainer = trainer_half.measure(folder, model, updates)
        _tell(f"a real run of {1 + rounds} rounds")
        settings = (f"engine.launch.python={Path(interpreter).absolute()}", f"schedule.groups_per_round={groups}")
        run = measure_run(servers.connections, folder, "stack-cpu.yaml", settings, rounds)
    report = Report(_machine(), shape, Paired.of(rollout), updates, Paired.of(trainer), run)
    console().print(view(report))
    if json_file is not None:
        turns = {"rollout_turns": _turns(rollout), "trainer_turns": _turns(trainer)}
        json_file.write_text(json.dumps({**asdict(report), **turns}, indent=1) + "\n")
    if markdown_file is not None:
        markdown_file.write_text(markdown(report))


def _turns(pairs: Sequence[Pair]) -> list[dict[str, float]]:
    return [{**asdict(pair), "ratio": pair.ratio} for pair in pairs]


def _tell(what: str) -> None:
    typer.echo(what, err=True)


def _machine() -> dict[str, str]:
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    start_alone(main)

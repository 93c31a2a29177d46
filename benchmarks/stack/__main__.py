"""`python -m rolloutpipe_benchmarks.stack [--python INTERPRETER] [--quick] [--json FILE] [--markdown FILE]`."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from rolloutpipe_core.cli.connect import check_output
from rolloutpipe_core.cli.output import console
from rolloutpipe_core.cli.start import start_alone
from rolloutpipe_core.data.models import POINTER_WALK
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.local.servers import LocalServers
from rolloutpipe_core.scratch import scratch_folder

from .pairs import Paired
from .report import Report, markdown, view
from .rollout_half import Shape, measure

FULL = Shape(groups=64, samples=8, slots=64, turns=7)
QUICK = Shape(groups=16, samples=8, slots=64, turns=3)


def main(
    python: Annotated[str, typer.Option(help="Interpreter of SGLang's environment.")] = ".venv-sglang/bin/python",
    model: Annotated[str, typer.Option(help="Folder of a model that knows the pointer walk.")] = POINTER_WALK,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer groups and turns.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here, too.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write the tables here, too.")] = None,
) -> None:
    """Measure rollout over an SGLang server beside a bare client of the same server."""
    torch.set_num_threads(1)
    for file, example in ((json_file, "stack.json"), (markdown_file, "stack.md")):
        if file is not None:
            check_output("report", file, example)
    if shutil.which(python) is None:
        raise BadInput("no such interpreter", given=python, remedy="on a CPU: infra/sglang-cpu/install")
    shape = QUICK if quick else FULL
    with scratch_folder() as folder, LocalServers.start(folder, die_with_parent=True) as servers:
        pairs = asyncio.run(measure(servers.connections, folder, python, model, shape))
    report = Report(_machine(), shape, Paired.of(pairs))
    console().print(view(report))
    if json_file is not None:
        turns = [{**asdict(pair), "ratio": pair.ratio} for pair in pairs]
        json_file.write_text(json.dumps({**asdict(report), "rollout_turns": turns}, indent=1) + "\n")
    if markdown_file is not None:
        markdown_file.write_text(markdown(report))


def _machine() -> dict[str, str]:
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    start_alone(main)

"""`python -m rolloutpipe_benchmarks.sglang_frontier --python INTERPRETER [--quick] [--json FILE]`."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rolloutpipe_components.rollout.engines.sglang.deadlines import Deadlines
from rolloutpipe_components.rollout.engines.sglang.engine import SglangEngine
from rolloutpipe_components.rollout.engines.sglang.model_facts import read_facts
from transformers import AutoTokenizer

from rolloutpipe_core.cli.connect import check_output
from rolloutpipe_core.cli.output import console, table
from rolloutpipe_core.cli.start import start_alone
from rolloutpipe_core.config.models import EngineConfig, ModelConfig, SamplingConfig
from rolloutpipe_core.data.pointer_walk import pointer_walk_prompts
from rolloutpipe_core.domain import WeightVersion
from rolloutpipe_core.scratch import scratch_folder
from rolloutpipe_core.store.canonical import sha256_hex
from rolloutpipe_core.store.directories import describe_directory

from ..schedules.model import write_model
from ..schedules.plan import Shape
from .measure import Load, Round, Summary, Way, admitted, all_at_once, bare

SAMPLES = 8
ROWS_SEED = 2
ENGINE_S = 300.0
MODEL = Shape(vocabulary=96, hidden=128, intermediate=384, layers=3, heads=4, kv_heads=2, head_size=32)
"""Of random weights: a response ends after 96 tokens on average, some after few and some never, as real ones do."""
LONGEST, POSITIONS = 256, 512
ADMISSION, PRIORITY, BARE = "admission", "priority", "bare client"
PRIORITIES = ("--enable-priority-scheduling", "--schedule-low-priority-values-first", "--disable-priority-preemption")
ON_CPU = ("--mem-fraction-static", "0.1", "--max-total-tokens", "65536", "--context-length", "512")


def main(
    python: Annotated[str, typer.Option(help="Interpreter of SGLang's environment.")] = ".venv-sglang/bin/python",
    slots: Annotated[int, typer.Option(min=1, help="Samples decoded at once, by both servers together.")] = 64,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer groups and turns.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here, too.")] = None,
) -> None:
    """Compare the two ways to put the frontier first on two SGLang servers, and both with a bare client."""
    if json_file is not None:
        check_output("report", json_file, "frontier.json")
    with scratch_folder() as logs:
        model = logs / "model"
        write_model(MODEL, POSITIONS, model)
        turns = asyncio.run(measure(python, model, slots, 16 if quick else 32, 3 if quick else 5, logs))
    summaries = {way: Summary.of([turn[way] for turn in turns]) for way in turns[0]}
    ratios = {way: [turn[way].tokens_s / turn[BARE].tokens_s for turn in turns] for way in turns[0]}
    columns = ("way", "tokens/s", "over bare", "by completion", "by submission")
    rows = [
        (
            way,
            f"{one.tokens_s:.0f}",
            f"{median(ratios[way]):.3f} ({min(ratios[way]):.3f} to {max(ratios[way]):.3f})",
            f"{one.by_completion_s:.2f} s",
            f"{one.by_submission_s:.2f} s",
        )
        for way, one in summaries.items()
    ]
    console().print(
        table(f"{len(turns)} turns, {slots} slots: mean time until a group is there", columns, rows, columns[1:])
    )
    if json_file is not None:
        report = {way: {**asdict(one), "over_bare": ratios[way]} for way, one in summaries.items()}
        json_file.write_text(json.dumps(report, indent=1) + "\n")


async def measure(python: str, folder: Path, slots: int, groups: int, turns: int, logs: Path) -> list[dict[str, Round]]:
    """Every way in turn, several times over, behind a turn to warm up."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [prompt.text for prompt in pointer_walk_prompts(ROWS_SEED, groups)]
    sampling = SamplingConfig(max_new_tokens=LONGEST)
    load = Load(tokenizer(texts, add_special_tokens=False).input_ids, SAMPLES, sampling)
    version = WeightVersion(0, sha256_hex(describe_directory(folder).to_bytes()))
    launch = {"replicas": 2, "python": python, "arguments": (*ON_CPU, *PRIORITIES)}
    config = EngineConfig.model_validate({"kind": "sglang", "launch": launch, "slots": slots})
    deadlines, model = Deadlines.of(config, ENGINE_S), ModelConfig(path=str(folder))
    async with AsyncExitStack() as stack:
        ours = SglangEngine(config, model, deadlines, "bench", logs)
        stack.push_async_callback(ours.close)
        await ours.load(version, folder)
        urls = tuple(replica.http.url for replica in ours.replicas)
        by_priority = EngineConfig(kind="sglang", urls=urls, slots=slots, frontier_by="priority")
        theirs = SglangEngine(by_priority, model, deadlines)
        stack.push_async_callback(theirs.close)
        await theirs.load(version, folder)
        stop_ids = sorted(read_facts(folder).eos_ids)
        ways: dict[str, Way] = {
            ADMISSION: lambda: admitted(ours, load),
            PRIORITY: lambda: all_at_once(theirs, load),
            BARE: lambda: bare(urls, slots, stop_ids, load),
        }
        found = [{name: await way() for name, way in ways.items()} for _ in range(1 + turns)]
    return found[1:]


if __name__ == "__main__":
    start_alone(main)

"""How fast the `torch` engine is: against plain generation loops, and deterministic against fast.

    python -m rolloutpipe_components.rollout.bench [--quick] [--json FILE] [--model FOLDER]

All contestants sample the same prompts with the same model on one thread, in turn, several times over; a ratio
is the median of the ratios within a turn, so that a change in the machine's load meets both sides. The plain
loops end each sample at the length that the engine gave it: everyone does the same work.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.utils.logging import disable_progress_bar

from rolloutpipe_core.cli.connect import check_output
from rolloutpipe_core.cli.start import start_alone
from rolloutpipe_core.config.models import EngineConfig, ModelConfig, SamplingConfig
from rolloutpipe_core.data.models import POINTER_WALK, resolve_model
from rolloutpipe_core.data.pointer_walk import pointer_walk_prompts
from rolloutpipe_core.domain import WeightVersion
from rolloutpipe_core.noise import sample_seed

from .engines.policy import cache_argument
from .engines.torch import TorchEngine

SLOTS, SAMPLES = 64, 8
ROWS_SEED = 2
SAMPLING = SamplingConfig(max_new_tokens=96)
VERSION = WeightVersion(0, "0" * 64)
FAST, DETERMINISTIC = "engine, fast", "engine, deterministic"
PLAIN_CHUNKS, PLAIN_ALL = "plain loop, in chunks", "plain loop, all at once"


@dataclass(frozen=True, slots=True)
class Speed:
    """Sampled tokens a second over the turns."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Report:
    responses: int
    mean_length: float  # tokens of a response
    longest: int
    turns: int
    speeds: dict[str, Speed]  # by contestant
    fast_over_plain: float  # engine / the better plain loop
    deterministic_over_fast: float


def plain_loop(model: PreTrainedModel, prompts: Sequence[Sequence[int]], lengths: Sequence[int], chunk: int) -> None:
    """Left-padded generation with a KV cache at temperature 1, `chunk` samples at a time; ended rows are dropped."""
    for start in range(0, len(prompts), chunk):
        plain_chunk(model, prompts[start : start + chunk], torch.tensor(lengths[start : start + chunk]))


@torch.inference_mode()
def plain_chunk(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], remaining: torch.Tensor
) -> list[tuple[list[int], list[float]]]:
    """One chunk, left-padded; row i ends after `remaining[i]` tokens. Returns ids and log-probabilities of each."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    responses: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    live = torch.arange(len(prompts))
    cache = DynamicCache()
    passed = {cache_argument(model): cache}
    while True:
        output = model(ids, attention_mask=mask, position_ids=positions, logits_to_keep=1, **passed)
        logprobs = output.logits[:, -1].float().log_softmax(-1)
        ids = logprobs.exp().multinomial(1)
        chosen = logprobs.gather(1, ids)[:, 0]
        for row, token, logprob in zip(live.tolist(), ids[:, 0].tolist(), chosen.tolist(), strict=True):
            responses[row][0].append(token)
            responses[row][1].append(logprob)
        remaining = remaining - 1
        keep = remaining.nonzero()[:, 0]
        if not len(keep):
            return responses
        if len(keep) < len(live):
            cache.batch_select_indices(keep)
            ids, mask, positions, live, remaining = (x[keep] for x in (ids, mask, positions, live, remaining))
        mask = torch.cat([mask, mask.new_ones((len(mask), 1))], dim=1)
        positions = positions[:, -1:] + 1


async def sample_all(engine: TorchEngine, prompts: Sequence[Sequence[int]]) -> list[int]:
    """Send all groups at once, in order of priority; return the responses' lengths, group by group."""
    calls = (
        engine.generate(prompt, SAMPLING, [sample_seed(0, 0, group, sample) for sample in range(SAMPLES)], group)
        for group, prompt in enumerate(prompts)
    )
    return [len(completion.response_ids) for group in await asyncio.gather(*calls) for completion in group]


async def measure(folder: Path, groups: int, turns: int) -> Report:
    """Let all contestants sample in turn, after a turn of the fast engine that gives the lengths."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [prompt.text for prompt in pointer_walk_prompts(ROWS_SEED, groups)]
    prompts: list[list[int]] = tokenizer(texts, add_special_tokens=False).input_ids
    repeated = [prompt for prompt in prompts for _ in range(SAMPLES)]
    fast, deterministic = (
        TorchEngine(EngineConfig(slots=SLOTS), ModelConfig(path=str(folder)), deterministic=mode)
        for mode in (False, True)
    )
    try:
        await fast.load(VERSION, folder)
        await deterministic.load(VERSION, folder)
        lengths = await sample_all(fast, prompts)

        async def engine(of: TorchEngine) -> int:
            return sum(await sample_all(of, prompts))

        async def plain(chunk: int) -> int:
            plain_loop(model, repeated, lengths, chunk)
            return sum(lengths)

        contestants: dict[str, Callable[[], Awaitable[int]]] = {
            FAST: lambda: engine(fast),
            DETERMINISTIC: lambda: engine(deterministic),
            PLAIN_CHUNKS: lambda: plain(SLOTS),
            PLAIN_ALL: lambda: plain(len(repeated)),
        }
        speeds = [{name: await _tokens_per_second(run) for name, run in contestants.items()} for _ in range(turns)]
    finally:
        await fast.close()
        await deterministic.close()
    return summarise(lengths, speeds)


async def _tokens_per_second(run: Callable[[], Awaitable[int]]) -> float:
    start = time.perf_counter()
    tokens = await run()
    return tokens / (time.perf_counter() - start)


def summarise(lengths: Sequence[int], turns: Sequence[Mapping[str, float]]) -> Report:
    """Medians over the turns; `turns` hold tokens a second by contestant."""
    by_name = {name: [turn[name] for turn in turns] for name in turns[0]}
    return Report(
        responses=len(lengths),
        mean_length=sum(lengths) / len(lengths),
        longest=max(lengths),
        turns=len(turns),
        speeds={name: Speed(median(values), min(values), max(values)) for name, values in by_name.items()},
        fast_over_plain=median(turn[FAST] / max(turn[PLAIN_CHUNKS], turn[PLAIN_ALL]) for turn in turns),
        deterministic_over_fast=median(turn[DETERMINISTIC] / turn[FAST] for turn in turns),
    )


def render(report: Report) -> Table:
    table = Table(
        title=f"{report.responses} responses of {report.mean_length:.1f} tokens (longest {report.longest}), "
        f"{SLOTS} slots, one thread, {report.turns} turns"
    )
    for column in ("contestant", "tokens/s", "least", "most"):
        table.add_column(column, justify="left" if column == "contestant" else "right")
    for name, speed in report.speeds.items():
        table.add_row(name, f"{speed.median:.0f}", f"{speed.least:.0f}", f"{speed.most:.0f}")
    table.caption = (
        f"fast / better plain loop {report.fast_over_plain:.2f}, "
        f"deterministic / fast {report.deterministic_over_fast:.2f}"
    )
    return table


def main(
    quick: Annotated[bool, typer.Option(help="Fewer prompts and turns: some seconds.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report here, too.")] = None,
    model: Annotated[str, typer.Option(help="Folder of a model that knows the pointer walk.")] = POINTER_WALK,
) -> None:
    """Measure the `torch` engine against plain generation loops."""
    torch.set_num_threads(1)
    disable_progress_bar()
    if json_file is not None:
        check_output("report", json_file, "engine.json")
    report = asyncio.run(measure(resolve_model(model), groups=16 if quick else 64, turns=3 if quick else 9))
    Console().print(render(report))
    if json_file is not None:
        json_file.write_text(json.dumps(asdict(report), indent=2) + "\n")


if __name__ == "__main__":
    start_alone(main)

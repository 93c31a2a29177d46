"""The rollout process: `python -m rolloutpipe_benchmarks.gpu.rolling FOLDER DEVICE`. Standard input asks for rounds."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rolloutpipe_components.rollout.engines.torch import TorchEngine
from rolloutpipe_components.rollout.materialize import GroupIdentity, materialize
from transformers.utils.logging import disable_progress_bar

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.noise import sample_seed
from rolloutpipe_core.rewards.score import Score
from rolloutpipe_core.store.groups import encode_group, reference_of

from .setup import (
    PROMPT_TOKENS,
    RUN,
    K,
    Lines,
    R,
    configure,
    peak_memory_gib,
    tell,
    version_of,
    vocabulary_of,
    weights_of,
)


@dataclass(frozen=True, slots=True)
class Roller:
    """Serves rounds, each with the weights that the folder holds for it."""

    engine: TorchEngine
    folder: Path
    device: str

    async def serve(self, lines: Lines) -> None:
        while (order := await asyncio.to_thread(lines.wait)) is not None:
            round = order["round"]
            await self.engine.load(version_of(round), weights_of(self.folder, round))
            tell({"ready": round})
            await asyncio.to_thread(lines.wait)  # the trainer is ready, too
            await self._round(round, configure(self.device, order["schedule"], order["new_tokens"]).sampling)

    async def _round(self, round: int, sampling: SamplingConfig) -> None:
        began, before = time.monotonic(), self.engine.statistics.tokens
        vocabulary = vocabulary_of(weights_of(self.folder, round))
        prompts = np.random.default_rng(round).integers(1, vocabulary, (R, PROMPT_TOKENS), dtype=np.int32)
        await asyncio.gather(*(self._group(round, index, prompts[index], sampling) for index in range(R)))
        facts = {"tokens": self.engine.statistics.tokens - before, "memory_gib": peak_memory_gib(self.device)}
        tell({"drained": {**facts, "began": began, "rollout_s": time.monotonic() - began}})

    async def _group(self, round: int, index: int, prompt: NDArray[np.int32], sampling: SamplingConfig) -> None:
        """Sample a group, call about half of its responses right, write its file, tell its reference."""
        seeds = [sample_seed(0, round, index, place) for place in range(K)]
        completions = await self.engine.generate(prompt.tolist(), sampling, seeds, index)
        scores = [Score(float(completion.response_ids[-1] % 2)) for completion in completions]
        identity = GroupIdentity(RUN, 1, round, index, 1, version_of(round), f"p{index}")
        group, _ = materialize(identity, prompt.tolist(), completions, [""] * K, scores, "grpo", 1e-4)
        materialized = time.monotonic()
        data = encode_group(group)
        ref = reference_of(group, data)
        path = self.folder / ref.object.replace("/", "-")
        await asyncio.to_thread(path.write_bytes, data)
        facts: dict[str, Any] = {"object": ref.object, "sha256": ref.sha256, "tokens": ref.tokens}
        tell({"group": {**facts, "index": index, "path": str(path), "materialized": materialized}})


async def main(folder: Path, device: str) -> None:
    config = configure(device, "serial", 1)
    engine = TorchEngine(config.engine, config.model)
    await Roller(engine, folder, device).serve(Lines(sys.stdin))
    await engine.close()


if __name__ == "__main__":
    disable_progress_bar()
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))

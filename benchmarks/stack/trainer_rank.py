"""One tensor parallel rank of the trainer half: `python -m rolloutpipe_benchmarks.stack.trainer_rank`, under torchrun.

Both contestants train in turns in this process, on the same micro-batches. The first rank prints one JSON line a turn:
[tokens a second by the backend, tokens a second by the bare loop].
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from rolloutpipe_components.trainer.backends.megatron.architecture import read_architecture, read_config
from rolloutpipe_components.trainer.backends.megatron.layout import Layout
from rolloutpipe_components.trainer.backends.megatron.trainer import MegatronTrainer
from rolloutpipe_components.trainer.batch import make_batch
from rolloutpipe_components.trainer.shares import plan_shares

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.data.models import resolve_model
from rolloutpipe_core.domain import FinishReason, Group, Sample, VersionSpan, WeightVersion

from .bare_megatron import BareLoop

VERSION = WeightVersion(0, "ab" * 32)
PROMPT = 40


def make_group(index: int, samples: int, longest: int, vocabulary: int) -> Group:
    """Responses of 8 to `longest` tokens."""
    draw = np.random.default_rng(index)
    prompt = draw.integers(2, vocabulary, PROMPT, dtype=np.int32)

    def make_sample(place: int) -> Sample:
        length = int(draw.integers(8, longest + 1))
        return Sample(
            index=place,
            prompt_ids=prompt,
            response_ids=draw.integers(2, vocabulary, length, dtype=np.int32),
            behavior_logprobs=np.full(length, -1.0, np.float32),
            loss_mask=np.ones(length, np.uint8),
            reward=float(place % 2),
            advantage=1.0 if place % 2 else -1.0,
            finish_reason=FinishReason.STOP,
            spans=(VersionSpan(VERSION, 0, length),),
        )

    return Group("bench", 1, 0, index, 1, VERSION, "p", tuple(make_sample(place) for place in range(samples)))


def rate(update: Callable[[], object], updates: int, tokens: int) -> float:
    """Tokens a second over `updates` updates of `tokens` tokens."""
    dist.barrier()
    start = time.monotonic()
    for _ in range(updates):
        update()
    dist.barrier()
    return updates * tokens / (time.monotonic() - start)


def main() -> None:
    """`config` as JSON, turns, updates a turn."""
    config, turns, updates = RunConfig.model_validate_json(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    folder = resolve_model(config.model.path)
    trainer = MegatronTrainer.of(config, folder)
    layout = Layout.start(config.trainer, config.model.device, config.deadlines.rank_s)
    architecture = read_architecture(read_config(folder))
    loop = BareLoop(architecture, layout, config.trainer, config.optimizer)
    schedule = config.schedule
    groups = [
        make_group(index, schedule.samples_per_group, config.sampling.max_new_tokens, architecture.vocabulary)
        for index in range(schedule.update_batch_size // schedule.samples_per_group)
    ]
    samples = [sample for group in groups for sample in group.samples]
    tokens = sum(group.tokens for group in groups)
    (plan,) = plan_shares([sample.tokens for sample in samples], 1, config.trainer.microbatch_tokens)
    batches = [make_batch([samples[index] for index in part], "token_mean", layout.device) for part in plan]

    def ours() -> None:
        trainer.begin_update(0)
        trainer.accumulate(groups)
        trainer.step()

    def bare() -> None:
        loop.step(batches)

    for turn in range(1 + turns):  # the first one warms up
        order = (ours, bare) if turn % 2 else (bare, ours)
        rates = {update: rate(update, updates, tokens) for update in order}
        if turn and dist.get_rank() == 0:
            print(json.dumps([rates[ours], rates[bare]]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

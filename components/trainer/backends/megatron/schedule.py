"""Micro-batches through megatron-core's schedules: one after the other, or along the pipeline's stages (1F1B).

The stages of a replica have the same micro-batches. Only the last has scores, so only there is a loss; the others pass
hidden states on and gradients back. Replicas meet at the step alone: one without a sample does nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from ...batch import Batch
from ..policy import Scores
from . import cpu

Loss = Callable[[int, Scores], Tensor]
"""(place of the micro-batch, its scores) -> its part of the update's sum"""


def train(model: nn.Module, batches: Sequence[Batch], loss: Loss, entropy_gradient: bool) -> None:
    """Forward and backward of every micro-batch; `loss` is called on the last stage, in their order."""
    nothing = torch.zeros((), dtype=torch.int)  # megatron-core counts tokens for a division that is not wanted

    def finish(place: int, scores: Scores) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return loss(place, scores), nothing, {}

    _run(model, batches, finish, entropy_gradient, forward_only=False)


@torch.no_grad()
def score(model: nn.Module, batches: Sequence[Batch]) -> list[Tensor]:
    """Log-probabilities [N] of every micro-batch; [] but on the last stage."""

    def finish(_: int, scores: Scores, **__: object) -> Tensor:
        return scores.logprobs

    return _run(model, batches, finish, entropy_gradient=False, forward_only=True)


def _run(
    model: nn.Module,
    batches: Sequence[Batch],
    finish: Callable[..., Any],
    entropy_gradient: bool,
    forward_only: bool,
) -> list[Any]:
    def step(numbered: Iterator[tuple[int, Batch]], model: nn.Module) -> tuple[Any, Callable[..., Any]]:
        place, batch = next(numbered)
        return model(batch, entropy_gradient), partial(finish, place)

    if not batches:
        return []
    with cpu.cuda_literals():
        results: list[Any] = get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=enumerate(batches),
            model=[model],
            num_microbatches=len(batches),
            seq_length=1,  # not used: stages tell each other the shapes
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )
    return results

"""Log-probabilities and entropy from logits of which each tensor-parallel rank has some columns.

    logprob = z_y - log sum_v exp z_v      d logprob / dz_v = [v = y] - p_v
    H       = -sum_v p_v log p_v           d H / dz_v       = -p_v (log p_v + H)

Forward: one maximum, then sums over the ranks. Backward: none, as each rank has what its columns need.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import FunctionCtx
from torch.distributed import ProcessGroup, ReduceOp
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from ..policy import CHUNK_LOGITS, Scores


def score_shard(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    first: int,
    ids: int,
    temperature: float,
    group: ProcessGroup,
    entropy_gradient: bool,
) -> Scores:
    """Log-probability and entropy of softmax(logits / T) at N tokens; the same on every rank of `group`.

    states [N, hidden], the same on every rank; weight [columns, hidden], this rank's part of the head, of the same size
    on every rank: the first `ids` rows are those of the ids from `first` on, the others padding; targets int64 [N]. In
    chunks whose logits are made again in the backward.
    """
    head = weight[:ids]

    def chunk(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = linear(states, head)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        logprobs, entropy = ShardScores.apply(wide, targets - first, group)  # type: ignore[no-untyped-call]
        return logprobs, entropy if entropy_gradient else entropy.detach()

    # By the padded size: ranks meet in every chunk, so that all must cut the same ones.
    rows = max(CHUNK_LOGITS // len(weight), 1)
    chunks = [
        checkpoint(chunk, *parts, use_reentrant=False, preserve_rng_state=False)
        for parts in zip(states.split(rows), targets.split(rows), strict=True)
    ]
    logprobs, entropy = zip(*chunks, strict=True)
    return Scores(torch.cat(logprobs), torch.cat(entropy))


class ShardScores(torch.autograd.Function):
    """logits float [N, columns], targets int64 [N] counting from the first column -> logprobs [N], entropy [N]."""

    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, targets: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
        peak = logits.amax(-1)
        distributed.all_reduce(peak, ReduceOp.MAX, group)
        log_probs = logits - peak[:, None]
        total = log_probs.exp().sum(-1)
        distributed.all_reduce(total, ReduceOp.SUM, group)
        log_probs -= total.log()[:, None]
        here = (targets >= 0) & (targets < logits.shape[-1])
        places = targets.where(here, 0)[:, None]
        chosen = log_probs.gather(-1, places)[:, 0].where(here, 0)
        sums = torch.stack([chosen, -(log_probs.exp() * log_probs).sum(-1)])
        distributed.all_reduce(sums, ReduceOp.SUM, group)
        logprobs, entropy = sums
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(log_probs, places, here, entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None]:
        log_probs, places, here, entropy = ctx.saved_tensors
        of_logprobs, of_entropy = gradients
        probs = log_probs.exp()
        result = torch.zeros_like(probs)
        if of_logprobs is not None:
            result -= probs * of_logprobs[:, None]
            result.scatter_add_(-1, places, of_logprobs.where(here, 0)[:, None])
        if of_entropy is not None:
            result -= probs * (log_probs + entropy[:, None]) * of_entropy[:, None]
        return result, None, None

"""GSPO: the surrogate is clipped by the ratio of the whole response, the geometric mean of its tokens' ratios.

    loss_i = -min(s_i * A_i, clip(s_i, 1 - clip_low, 1 + clip_high) * A_i)
    s_i = exp(mean over the response's trained tokens of (logprob_t - old_t))

Each token is given its response's loss: in `sample_mean`, whose weights are 1 / trained tokens, they add up to it once.
Source: Group Sequence Policy Optimization (arXiv 2507.18071), eq. 5 to 7, where the bounds are about 3e-4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .surrogate import Surrogate, clipped_surrogate


def sequence_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor, clip_low: float, clip_high: float
) -> Surrogate:
    """Tensors are float [N], nats, but for `rows`, int64 [N]: the response of each token; `ratio` is s_i at each token.

    Only `logprobs` carries a gradient, which reaches every token of a response.
    """
    _, response, tokens = torch.unique(rows, return_inverse=True, return_counts=True)
    sums = logprobs.new_zeros(len(tokens)).index_add(0, response, logprobs - old_logprobs)
    means = (sums / tokens)[response]
    return clipped_surrogate(means, torch.zeros_like(means), advantages, clip_low, clip_high)

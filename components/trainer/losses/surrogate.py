"""The clipped surrogate of PPO, token by token.

    loss_t = -min(ratio_t * A, clip(ratio_t, 1 - clip_low, 1 + clip_high) * A),  ratio_t = exp(logprob_t - old_t)

Source: Schulman et al., Proximal Policy Optimization (arXiv 1707.06347), eq. 7; two bounds: DAPO (arXiv 2503.14476),
eq. 8. GRPO (arXiv 2402.03300, eq. 3) gives each token of a response the response's group-relative advantage.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, minimum


class Surrogate(NamedTuple):
    loss: Tensor  # [N], to be minimised
    ratio: Tensor  # [N]
    clipped: Tensor  # [N] bool: a bound was taken; what that means for the gradient is the policy term's


def clipped_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> Surrogate:
    """All tensors are float [N], nats; only `logprobs` carries a gradient. A clipped token gives none."""
    ratio = (logprobs - old_logprobs).exp()
    clamped = ratio.clamp(1 - clip_low, 1 + clip_high)
    clipped = ((ratio < 1 - clip_low) & (advantages < 0)) | ((ratio > 1 + clip_high) & (advantages > 0))
    return Surrogate(-minimum(ratio * advantages, clamped * advantages), ratio, clipped)

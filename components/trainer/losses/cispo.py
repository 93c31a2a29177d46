"""CISPO: the importance weight is clipped, not the token: every token keeps its gradient.

    loss_t = -clip(ratio_t, 1 - clip_low, 1 + clip_high) * A * logprob_t,  the clipped ratio without a gradient

The gradient is that of REINFORCE with a bounded weight. The source sets no lower bound, which is `clip_low: 1`.
Source: MiniMax-M1 (arXiv 2506.13585), eq. 4 and 5.
"""

from __future__ import annotations

from torch import Tensor

from .surrogate import Surrogate


def clipped_weight(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> Surrogate:
    """Tensors are float [N], nats; only `logprobs` carries a gradient. `clipped`: the weight is a bound."""
    ratio = (logprobs - old_logprobs).detach().exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return Surrogate(-weight * advantages * logprobs, ratio, weight != ratio)

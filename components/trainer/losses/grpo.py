"""The objective of GRPO and Dr. GRPO at each token; both are this, with another advantage and aggregation.

    loss_t = w_t * surrogate_t + kl_coefficient * k3_t - entropy_coefficient * H_t

`surrogate`, `kl`, `entropy` and `importance` have the terms. w_t = 1 without an `importance_cap`. All terms share the
aggregation (`aggregation`). Source: DeepSeekMath (arXiv 2402.03300), eq. 3; Dr. GRPO (arXiv 2503.20783).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rolloutpipe_core.config.models import LossConfig

from .importance import truncated_weight
from .kl import k3
from .surrogate import clipped_surrogate


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """What the objective is at N tokens, in nats but for the ratio."""

    loss: Tensor  # [N], with the gradient
    ratio: Tensor  # [N], policy over old
    clipped: Tensor  # [N] bool
    kl: Tensor | None  # [N], policy to reference; None without a reference


def grpo_loss(
    config: LossConfig,
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    engine_logprobs: Tensor,
    advantages: Tensor,
    entropy: Tensor,
    reference_logprobs: Tensor | None,
) -> TokenLoss:
    """All tensors are float [N]; `logprobs` and `entropy` carry gradients."""
    surrogate = clipped_surrogate(logprobs, old_logprobs, advantages, config.clip_low, config.clip_high)
    loss = surrogate.loss
    if config.importance_cap is not None:
        loss = loss * truncated_weight(old_logprobs, engine_logprobs, config.importance_cap)
    kl = None
    if reference_logprobs is not None:
        kl = k3(reference_logprobs - logprobs)
        loss = loss + config.kl_coefficient * kl
    if config.entropy_coefficient:
        loss = loss - config.entropy_coefficient * entropy
    return TokenLoss(loss, surrogate.ratio, surrogate.clipped, kl)

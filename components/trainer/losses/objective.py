"""The objective at each token, whatever the policy term.

    loss_t = w_t * policy_t + kl_coefficient * KL_t - entropy_coefficient * H_t

policy_t: `surrogate` (GRPO, Dr. GRPO, DAPO), `gspo` or `cispo`, by `loss.kind`; `kl`, `entropy` and `importance` have
the other terms. w_t = 1 without an `importance_cap`. All terms share the aggregation (`aggregation`).
Source: DeepSeekMath (arXiv 2402.03300), eq. 3; Dr. GRPO (arXiv 2503.20783); DAPO (arXiv 2503.14476), eq. 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rolloutpipe_core.config.models import LossConfig

from .cispo import clipped_weight
from .gspo import sequence_surrogate
from .importance import truncated_weight
from .kl import ESTIMATORS
from .surrogate import Surrogate, clipped_surrogate


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """What the objective is at N tokens, in nats but for the ratio."""

    loss: Tensor  # [N], with the gradient
    ratio: Tensor  # [N], policy over old
    clipped: Tensor  # [N] bool
    kl: Tensor | None  # [N], policy to reference; None without a reference


def token_loss(
    config: LossConfig,
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    engine_logprobs: Tensor,
    advantages: Tensor,
    entropy: Tensor,
    rows: Tensor,
    reference_logprobs: Tensor | None,
) -> TokenLoss:
    """Tensors are float [N] but for `rows`, int64 [N]: the sample of each token, whose trained tokens are all there.

    `logprobs` and `entropy` carry gradients.
    """
    policy = _policy(config, logprobs, old_logprobs, advantages, rows)
    loss = policy.loss
    if config.importance_cap is not None:
        loss = loss * truncated_weight(old_logprobs, engine_logprobs, config.importance_cap)
    kl = None
    if reference_logprobs is not None:
        kl = ESTIMATORS[config.kl_estimator](reference_logprobs - logprobs)
        loss = loss + config.kl_coefficient * kl
    if config.entropy_coefficient:
        loss = loss - config.entropy_coefficient * entropy
    return TokenLoss(loss, policy.ratio, policy.clipped, kl)


def _policy(config: LossConfig, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rows: Tensor) -> Surrogate:
    low, high = config.clip_low, config.clip_high
    if config.kind == "gspo":
        return sequence_surrogate(logprobs, old_logprobs, advantages, rows, low, high)
    if config.kind == "cispo":
        return clipped_weight(logprobs, old_logprobs, advantages, low, high)
    return clipped_surrogate(logprobs, old_logprobs, advantages, low, high)

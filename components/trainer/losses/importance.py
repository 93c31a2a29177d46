"""The truncated importance weight between trainer and engine, token by token.

    w_t = min(exp(old_t - engine_t), cap)

`old` is the trainer's log-probability under the round's weights, `engine` the one the token was sampled with. The
weight is not normalised by its sum, so that it does not depend on what else is in the update.
Source: Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL Training (2025); Ionides,
Truncated Importance Sampling (2008).
"""

from __future__ import annotations

from torch import Tensor


def truncated_weight(old_logprobs: Tensor, engine_logprobs: Tensor, cap: float) -> Tensor:
    """[N], without a gradient."""
    return (old_logprobs - engine_logprobs).exp().clamp(max=cap).detach()

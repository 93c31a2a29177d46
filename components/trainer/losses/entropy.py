"""The entropy of the policy at each token: H = -sum_v p_v log p_v.

An entropy bonus in a policy-gradient loss: Mnih et al. (arXiv 1602.01783), section 4; PPO (arXiv 1707.06347), eq. 9.
"""

from __future__ import annotations

from torch import Tensor


def token_entropy(log_probs: Tensor) -> Tensor:
    """Nats, [N] of log-probabilities [N, V]. It is that of the tempered distribution softmax(logits / T)."""
    return -(log_probs.exp() * log_probs).sum(-1)

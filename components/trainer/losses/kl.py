"""The k3 estimator of a KL divergence, token by token.

    k3 = exp(x) - 1 - x,  x = log p - log q on tokens drawn from q;  the mean over tokens estimates KL(q || p)

It is never negative and has less variance than -x. Source: Schulman, Approximating KL Divergence
(joschu.net/blog/kl-approx.html, 2020); in GRPO's loss: arXiv 2402.03300, eq. 4, with p the reference.
"""

from __future__ import annotations

from torch import Tensor


def k3(log_ratio: Tensor) -> Tensor:
    """Nats, [N] -> [N]."""
    return log_ratio.expm1() - log_ratio

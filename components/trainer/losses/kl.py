"""Estimators of a KL divergence, token by token.

    x = log p - log q on tokens drawn from q;  the mean over tokens estimates KL(q || p)
    k1 = -x                 unbiased, of high variance; can be negative
    k2 = x^2 / 2            biased, of low variance
    k3 = exp(x) - 1 - x     unbiased, of low variance, never negative

As a loss term, with p the reference and q the policy: k1's expected gradient is 0, k2's is that of the true KL(q || p),
k3's that of KL(p || q). Source: Schulman, Approximating KL Divergence (joschu.net/blog/kl-approx.html, 2020); k3 in
GRPO's loss: arXiv 2402.03300, eq. 4; the gradients: arXiv 2506.09477, section 3.
"""

from __future__ import annotations

from torch import Tensor


def k1(log_ratio: Tensor) -> Tensor:
    """Nats, [N] -> [N]."""
    return -log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """Nats, [N] -> [N]."""
    return log_ratio.square() / 2


def k3(log_ratio: Tensor) -> Tensor:
    """Nats, [N] -> [N]."""
    return log_ratio.expm1() - log_ratio


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}

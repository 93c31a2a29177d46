"""How the losses of an update's tokens become one number: sum_t weight_t * loss_t / denominator.

    aggregation   weight of a token            denominator                  source
    token_mean    1                            trained tokens               DAPO, arXiv 2503.14476, eq. 8
    sample_mean   1 / trained tokens of its    samples                      GRPO, arXiv 2402.03300, eq. 3
                  sample
    dr_grpo       1                            samples x max_new_tokens     Dr. GRPO, arXiv 2503.20783, section 3.2

A weight is known from the sample alone and the denominator only at the step: that is why gradients can be summed
group by group, in any order. A sample of which no token is trained adds 0 to the sum and counts as a sample.
"""

from __future__ import annotations

from typing import Literal

Aggregation = Literal["token_mean", "sample_mean", "dr_grpo"]


def token_weight(aggregation: Aggregation, sample_tokens: int) -> float:
    """Weight of each of a sample's `sample_tokens` >= 1 trained tokens."""
    return 1.0 / sample_tokens if aggregation == "sample_mean" else 1.0


def denominator(aggregation: Aggregation, samples: int, tokens: int, max_new_tokens: int) -> int:
    """What the update's sums are divided by, at least 1: without a trained token the sums are 0."""
    counts = {"token_mean": tokens, "sample_mean": samples, "dr_grpo": samples * max_new_tokens}
    return max(counts[aggregation], 1)

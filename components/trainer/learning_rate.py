"""The learning rate of each update: linear warm-up, then constant, linear or cosine (arXiv 1608.03983, eq. 5)."""

from __future__ import annotations

import math

from rolloutpipe_core.config.models import OptimizerConfig


def learning_rate(update: int, config: OptimizerConfig) -> float:
    """Rate of the run's update `update`, from 0.

    Of W warm-up updates, number u has (u + 1) / (W + 1) of the peak; update W has the peak. From there the decay
    reaches `min_learning_rate` after `decay_updates` more and stays. Skipped updates count, so that the decay ends
    where the configuration says.
    """
    peak, floor = config.learning_rate, config.min_learning_rate
    if update < config.warmup_updates:
        return peak * (update + 1) / (config.warmup_updates + 1)
    if config.decay == "constant" or config.decay_updates is None:
        return peak
    progress = min((update - config.warmup_updates) / config.decay_updates, 1.0)
    remaining = 1 - progress if config.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return floor + (peak - floor) * remaining

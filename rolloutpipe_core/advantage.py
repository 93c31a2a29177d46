"""Group statistics: the advantage of each of a group's K samples (paper, section 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

AdvantageKind = Literal["grpo", "dr_grpo"]


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    mean: float
    std: float  # of the sample (divided by K - 1), as torch.std and trl take it
    advantages: tuple[float, ...]  # [K]

    @property
    def zero_variance(self) -> bool:
        return self.std == 0.0


def group_statistics(rewards: Sequence[float], kind: AdvantageKind = "grpo", eps: float = 1e-4) -> GroupStatistics:
    """Advantages of K rewards: (r - mean) / (std + eps) for `grpo`, r - mean for `dr_grpo`.

    `grpo` is DeepSeekMath (arXiv 2402.03300) section 4.1; `dr_grpo` (arXiv 2503.20783) drops the division
    by the deviation. With K = 1 the deviation is 0 and so is the advantage.
    """
    values = np.asarray(rewards, dtype=np.float64)
    count = len(values)
    # The sums of numpy's own `mean` and `std`, whose other work takes longer than the sums of a group.
    mean = float(np.add.reduce(values)) / count
    # Identical rewards must give exactly 0, which float summation alone does not promise (3 times 0.1).
    if count == 1 or (values == values[0]).all():
        return GroupStatistics(mean=mean, std=0.0, advantages=(0.0,) * count)
    centred = values - mean
    std = math.sqrt(float(np.add.reduce(centred * centred)) / (count - 1))
    scaled = centred / (std + eps) if kind == "grpo" else centred
    return GroupStatistics(mean=mean, std=std, advantages=tuple(scaled.tolist()))

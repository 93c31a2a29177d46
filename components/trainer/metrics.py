"""What an update measures: (sum, count) pairs and maxima, reduced once at its end.

Pairs of several micro-batches (later: ranks) add up; means of means would weigh tokens unequally.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class MetricSums:
    pairs: dict[str, tuple[float, int]] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, sums: Mapping[str, float], count: int) -> None:
        """Add sums over `count` tokens."""
        for name, value in sums.items():
            total, tokens = self.pairs.get(name, (0.0, 0))
            self.pairs[name] = (total + value, tokens + count)

    def add_maximum(self, name: str, value: float) -> None:
        self.maxima[name] = max(value, self.maxima.get(name, -math.inf))

    def reduced(self) -> dict[str, float]:
        """Mean of each pair (0 for a pair without tokens) and the maxima."""
        means = {name: total / max(count, 1) for name, (total, count) in self.pairs.items()}
        return {**means, **self.maxima}

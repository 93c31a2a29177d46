"""What an update measures: (sum, count) pairs and maxima, reduced once at its end.

Pairs of several micro-batches and of several ranks add up; means of means would weigh tokens unequally.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PAIRS = ("ratio_mean", "clip_fraction", "entropy", "kl", "mismatch_kl", "mismatch_mean")
MAXIMA = ("mismatch_max",)


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

    def packed(self) -> list[float]:
        """Sum and count of every pair, then the maxima, in the order of `PAIRS` and `MAXIMA`; -inf is no maximum."""
        assert self.pairs.keys() <= set(PAIRS), "a measure without a place"
        pairs = [float(part) for name in PAIRS for part in self.pairs.get(name, (0.0, 0))]
        return pairs + [self.maxima.get(name, -math.inf) for name in MAXIMA]

    @classmethod
    def combined(cls, rows: Sequence[Sequence[float]]) -> MetricSums:
        """What several ranks measured, from the `packed` of each; names that no rank measured stay away."""
        sums = cls()
        for row in rows:
            for place, name in enumerate(PAIRS):
                total, count = row[2 * place : 2 * place + 2]
                if count:
                    sums.add({name: total}, round(count))
            for name, value in zip(MAXIMA, row[2 * len(PAIRS) :], strict=True):
                if value > -math.inf:
                    sums.add_maximum(name, value)
        return sums

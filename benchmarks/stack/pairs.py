"""Measurements in pairs: ours and the bare one, one right after the other, so that both meet the same machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Pair:
    """One turn. Tokens a second."""

    ours: float
    bare: float

    @property
    def ratio(self) -> float:
        return self.ours / self.bare


@dataclass(frozen=True, slots=True)
class Paired:
    """Medians over the turns, with least and most of the ratios within a turn."""

    turns: int
    ours: float
    bare: float
    ratio: float
    least: float
    most: float

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Paired:
        """Raises StatisticsError without any pair."""
        ratios = [pair.ratio for pair in pairs]
        return cls(
            turns=len(pairs),
            ours=median(pair.ours for pair in pairs),
            bare=median(pair.bare for pair in pairs),
            ratio=median(ratios),
            least=min(ratios),
            most=max(ratios),
        )

"""What servers must have in common to serve one version: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .answers import ServerInfo
from .failures import Unfit
from .weights import Weights

Checksums = tuple[str, ...]
"""Of a server's weights, one a rank."""


@dataclass(eq=False, slots=True)
class Terms:
    """Of one version. The servers that are handed it first settle them; whoever comes later has to meet them."""

    weights: Weights
    by_priority: bool  # servers have to schedule by priority
    positions: int | None  # longest sequence in tokens that every server takes; at first the model's own
    settled: bool = False  # a server serves by these terms: what it takes may be on its way to any
    checksums: Checksums | None = None  # None: nobody has told any yet, or there was no majority

    def check(self, name: str, info: ServerInfo) -> None:
        """Raises Unfit when the server cannot meet the terms. Until they are settled its length bounds them."""
        if self.by_priority and not info.enable_priority_scheduling:
            raise Unfit(
                f"{name} does not schedule by priority",
                expected="a server started with --enable-priority-scheduling",
                remedy="start it so, or set engine.frontier_by to admission",
            )
        length = info.context_length
        if length is None or (self.positions is not None and self.positions <= length):
            return
        if self.settled:
            raise Unfit(
                f"{name} takes shorter sequences than the others",
                given=f"{length} tokens",
                expected=f"{self.positions or 'any number of'} tokens",
                remedy="start it with the --context-length of the others",
            )
        self.positions = length

    def disagreeing(self, checksums: Mapping[str, Checksums | None]) -> dict[str, str]:
        """Why which servers cannot be trusted, by name. The first that tell checksums settle them by majority.

        Where no more than half of those agree, none of the servers can be trusted. None: a server that tells none,
        which is trusted only while no other has told any.
        """
        tellers = [sums for sums in checksums.values() if sums is not None]
        if self.checksums is None and not tellers:
            return {}
        if self.checksums is None:
            self.checksums = majority(tellers)
        agreed = "no majority" if self.checksums is None else _told(self.checksums)
        all = "; ".join(f"{name} {_told(sums)}" for name, sums in sorted(checksums.items()))
        odd = [name for name, sums in checksums.items() if sums is None or sums != self.checksums]
        return dict.fromkeys(odd, f"{all}; agreed: {agreed}")


def majority(checksums: Collection[Checksums]) -> Checksums | None:
    """Those of more than half of the servers; None where there are none such."""
    counted = Counter(checksums).most_common(1)
    return next((sums for sums, times in counted if 2 * times > len(checksums)), None)


def _told(checksums: Checksums | None) -> str:
    return "none" if checksums is None else " ".join(checksums)[:80]

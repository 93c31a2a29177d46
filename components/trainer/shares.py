"""Which of an update's samples each data-parallel rank takes, and in what micro-batches.

A pure function of the lengths, so that every rank makes the same plan from the same groups and nothing is sent. Ranks
meet in collectives in every forward and backward, so each must run the same number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from .microbatch import plan_microbatches


def plan_shares(lengths: Sequence[int], ranks: int, budget: int) -> list[list[list[int]]]:
    """For each of `ranks` data-parallel ranks its micro-batches: lists of indices of the samples.

    Guaranteed: every index once; as many micro-batches on every rank, `[]` standing for a filler that adds nothing (a
    backend whose ranks don't meet in a micro-batch leaves it out); a rank's micro-batches are those of
    `plan_microbatches`, longest samples first, its fillers last; and no rank has more tokens than another by more than
    one sample's. Without a sample there is no micro-batch.
    """
    plans = [
        [
            [share[place] for place in microbatch]
            for microbatch in plan_microbatches([lengths[i] for i in share], budget)
        ]
        for share in _balanced(lengths, ranks)
    ]
    count = max(len(plan) for plan in plans)
    return [plan + [[] for _ in range(count - len(plan))] for plan in plans]


def _balanced(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Longest first, each to the rank with the fewest tokens so far (Graham 1969: at most 4/3 of the best plan)."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        rank = min(range(ranks), key=lambda rank: (loads[rank], rank))
        shares[rank].append(index)
        loads[rank] += lengths[index]
    return shares

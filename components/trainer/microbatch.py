"""Which samples share a forward and backward: micro-batches within a token budget, padding included.

A micro-batch is a rectangle of (samples) x (its longest sample), so its cost is that product.
"""

from __future__ import annotations

from collections.abc import Sequence


def plan_microbatches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of the samples of each micro-batch; every index once, longest samples first.

    Guaranteed: a micro-batch costs at most `budget` tokens unless it is one sample that is longer by itself; no plan
    has fewer micro-batches; and no plan of that many has less padding. The last two hold because swapping samples
    until each micro-batch is a run of the order by length never makes one longer, and all runs are compared.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    # best[end]: (micro-batches, cost, start of the last one) of the first `end` samples of the order.
    best = [(0, 0, 0)]
    for end in range(1, len(order) + 1):
        best.append(min(_last_runs(lengths, order, best, end, budget)))
    plan: list[list[int]] = []
    end = len(order)
    while end:
        start = best[end][2]
        plan.append(order[start:end])
        end = start
    return plan[::-1]


def _last_runs(
    lengths: Sequence[int], order: Sequence[int], best: Sequence[tuple[int, int, int]], end: int, budget: int
) -> list[tuple[int, int, int]]:
    """Every micro-batch that may end before `end`, with what it and those before it come to."""
    runs = []
    for start in reversed(range(end)):
        cost = lengths[order[start]] * (end - start)
        if cost > budget and end - start > 1:
            break
        runs.append((best[start][0] + 1, best[start][1] + cost, start))
    return runs

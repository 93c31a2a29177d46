from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rolloutpipe_components.trainer.microbatch import plan_microbatches

LENGTHS = st.lists(st.integers(1, 50), max_size=60)


def cost(lengths: list[int], plan: list[list[int]]) -> int:
    return sum(max(lengths[index] for index in microbatch) * len(microbatch) for microbatch in plan)


def all_plans(indices: list[int]) -> list[list[list[int]]]:
    """Every way to part the indices, in whatever order by length."""
    if not indices:
        return [[]]
    first, rest = indices[0], indices[1:]
    plans = []
    for plan in all_plans(rest):
        plans.append([[first], *plan])
        plans.extend([*plan[:place], [first, *plan[place]], *plan[place + 1 :]] for place in range(len(plan)))
    return plans


@pytest.mark.parametrize(
    ("lengths", "budget", "plan"),
    [
        ([], 10, []),
        ([3, 9, 4, 8], 20, [[1, 3], [2, 0]]),  # 2 x 9 and 2 x 4
        ([10] * 4, 20, [[0, 1], [2, 3]]),  # a group of 40 tokens over a budget of 20 is split
        ([30, 4, 4], 20, [[0], [1, 2]]),  # a sample over the budget goes alone
        # Filling the first to the brim would cost 10 x 10 + 11 x 1: two micro-batches can cost 10 + 20.
        ([10] + [1] * 20, 100, [[0], list(range(1, 21))]),
    ],
)
def test_plans_by_hand(lengths: list[int], budget: int, plan: list[list[int]]) -> None:
    assert plan_microbatches(lengths, budget) == plan


@given(LENGTHS, st.integers(1, 120))
def test_every_sample_once_and_the_budget_kept(lengths: list[int], budget: int) -> None:
    plan = plan_microbatches(lengths, budget)
    assert sorted(index for microbatch in plan for index in microbatch) == list(range(len(lengths)))
    for microbatch in plan:
        longest = max(lengths[index] for index in microbatch)
        assert longest * len(microbatch) <= budget or len(microbatch) == 1


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(1, 30))
def test_no_plan_has_fewer_microbatches_or_as_many_with_less_padding(lengths: list[int], budget: int) -> None:
    def allowed(plan: list[list[int]]) -> bool:
        return all(cost(lengths, [microbatch]) <= budget or len(microbatch) == 1 for microbatch in plan)

    best = min((len(plan), cost(lengths, plan)) for plan in all_plans(list(range(len(lengths)))) if allowed(plan))
    plan = plan_microbatches(lengths, budget)
    assert (len(plan), cost(lengths, plan)) == best

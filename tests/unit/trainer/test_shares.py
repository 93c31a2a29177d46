from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rolloutpipe_components.trainer.microbatch import plan_microbatches
from rolloutpipe_components.trainer.shares import plan_shares

LENGTHS = st.lists(st.integers(1, 50), max_size=60)
RANKS = st.integers(1, 9)


@pytest.mark.parametrize(
    ("lengths", "ranks", "budget", "plan"),
    [
        ([], 2, 10, [[], []]),
        ([7], 1, 10, [[[0]]]),
        ([7], 3, 10, [[[0]], [[]], [[]]]),  # one sample: two ranks run a filler
        ([5, 5], 4, 10, [[[0]], [[1]], [[]], [[]]]),  # more ranks than samples
        # 9 | 8, then 4 beside 8 and 3 beside 9: 12 tokens each. Two of 9 or of 8 are over the budget together.
        ([3, 9, 4, 8], 2, 12, [[[1], [0]], [[3], [2]]]),
        # 20 | 6 + 6 + 6: one micro-batch against one of 18; nobody has a filler.
        ([6, 20, 6, 6], 2, 20, [[[1]], [[0, 2, 3]]]),
        # The same with a budget of 12: the three take two micro-batches, so the other rank runs a filler.
        ([6, 20, 6, 6], 2, 12, [[[1], []], [[0], [2, 3]]]),
    ],
)
def test_plans_by_hand(lengths: list[int], ranks: int, budget: int, plan: list[list[list[int]]]) -> None:
    assert plan_shares(lengths, ranks, budget) == plan


@given(LENGTHS, RANKS, st.integers(1, 120))
def test_every_sample_once_in_as_many_microbatches_on_every_rank(lengths: list[int], ranks: int, budget: int) -> None:
    plan = plan_shares(lengths, ranks, budget)
    assert len(plan) == ranks
    taken = [index for rank in plan for microbatch in rank for index in microbatch]
    assert sorted(taken) == list(range(len(lengths)))
    assert len({len(rank) for rank in plan}) == 1
    assert any(all(rank) for rank in plan), "one rank has no filler: the number is the smallest"
    for rank in plan:
        for microbatch in filter(None, rank):
            assert max(lengths[index] for index in microbatch) * len(microbatch) <= budget or len(microbatch) == 1


@given(LENGTHS, RANKS, st.integers(1, 120))
def test_no_rank_has_more_than_another_by_more_than_a_sample(lengths: list[int], ranks: int, budget: int) -> None:
    loads = [
        sum(lengths[index] for microbatch in rank for index in microbatch)
        for rank in plan_shares(lengths, ranks, budget)
    ]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@given(LENGTHS, st.integers(1, 120))
def test_one_rank_has_the_plan_of_microbatches(lengths: list[int], budget: int) -> None:
    (plan,) = plan_shares(lengths, 1, budget)
    costs = [max(lengths[index] for index in microbatch) * len(microbatch) for microbatch in plan]
    alone = plan_microbatches(lengths, budget)
    assert costs == [max(lengths[index] for index in microbatch) * len(microbatch) for microbatch in alone]

"""The fixed-point sum by hand: what it counts, what it rounds, and when it says that it does not know."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from rolloutpipe_components.trainer.backends.gradients import FixedPointSum, FloatSum

STEP = 2.0**-40


def summed(kind, addends, dtype=torch.float32):
    total = kind(torch.zeros(1, dtype=dtype))
    for addend in addends:
        total.add(torch.tensor([addend], dtype=dtype))
    return total


@pytest.mark.parametrize(
    ("addend", "steps"),
    [
        (1.0, 2**40),
        (-3.5, -7 * 2**39),
        (2.0**-17, 2**23),
        (1 + 2.0**-23, 2**40 + 2**17),  # the neighbour of 1 in float32
        (0.75 * STEP, 1),
        (-0.75 * STEP, -1),
        (0.5 * STEP, 0),  # ties go to the even number
        (1.5 * STEP, 2),
        (2.0**-60, 0),
    ],
)
def test_an_addend_is_counted_in_steps(addend, steps):
    assert summed(FixedPointSum, [addend]).total.tolist() == [steps]


def test_the_quotient_is_the_nearest_float32():
    total = summed(FixedPointSum, [1.0, 2.0, -7.0])
    assert total.divided(3).tolist() == [torch.tensor(-4 / 3).item()]


def test_a_bfloat16_gradient_is_not_rounded_again():
    total = summed(FixedPointSum, [1.0, 2.0**-20], torch.bfloat16)
    assert total.total.tolist() == [2**40 + 2**20]
    assert total.divided(1).dtype == torch.float32


def test_a_matrix_in_chunks_and_in_any_layout(monkeypatch):
    monkeypatch.setattr(FixedPointSum, "CHUNK", 4)
    total = FixedPointSum(torch.zeros(2, 5))
    total.add(torch.arange(10.0).view(5, 2).T)
    assert (total.total / 2**40).tolist() == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_every_order_gives_the_sum_that_floats_lose():
    addends = [2.0**20, 2.0**-30, -(2.0**20)]
    assert {summed(FixedPointSum, order).divided(1).item() for order in permutations(addends)} == {2.0**-30}
    assert {summed(FloatSum, order).divided(1).item() for order in permutations(addends)} == {0.0, 2.0**-30}


@pytest.mark.parametrize("last", [2.0**22, -(2.0**22)])
def test_what_could_wrap_in_some_order_is_nan_in_every_order(last):
    """2**22 are 2**62 steps: with two of them some order might reach 2**63, whatever their signs."""
    for order in permutations([2.0**22, last, 1.0]):
        assert math.isnan(summed(FixedPointSum, order).divided(1).item())


def test_all_below_the_limit_is_held():
    largest = 2.0**22 - 0.25  # the largest float32 below 2**22
    assert summed(FixedPointSum, [largest, largest]).total.tolist() == [2**63 - 2**39]
    assert summed(FixedPointSum, [-largest, -largest]).total.tolist() == [-(2**63) + 2**39]


@pytest.mark.parametrize("addend", [math.inf, -math.inf, math.nan, 3e38])
def test_what_is_not_finite_stays_so_until_clear(addend):
    for addends in ([addend, 1.0], [1.0, addend]):
        total = summed(FixedPointSum, addends)
        assert math.isnan(total.divided(1).item())
        total.clear()
        total.add(torch.tensor([1.0]))
        assert total.divided(2).item() == 0.5

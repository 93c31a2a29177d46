"""Group statistics with numbers worked out by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rolloutpipe_core.advantage import group_statistics


def test_by_hand():
    """Rewards 0 1 1 0: mean 1/2, squares sum to 1, std sqrt(1/3); (1 - 1/2) / sqrt(1/3) = sqrt(3)/2."""
    statistics = group_statistics([0.0, 1.0, 1.0, 0.0], eps=0.0)
    assert statistics.mean == 0.5
    assert statistics.std == pytest.approx(3**-0.5, abs=1e-15)
    assert statistics.advantages == pytest.approx((-(3**0.5) / 2, 3**0.5 / 2, 3**0.5 / 2, -(3**0.5) / 2), abs=1e-15)
    assert not statistics.zero_variance


def test_eps_is_added_to_the_deviation():
    """Rewards 0 2: mean 1, std sqrt(2); with eps = 2 - sqrt(2) the divisor is 2."""
    assert group_statistics([0.0, 2.0], eps=2 - 2**0.5).advantages == pytest.approx((-0.5, 0.5), abs=1e-15)


def test_dr_grpo_only_centres():
    """Rewards 1 0 0 0: mean 1/4."""
    statistics = group_statistics([1.0, 0.0, 0.0, 0.0], kind="dr_grpo")
    assert statistics.advantages == (0.75, -0.25, -0.25, -0.25)
    assert statistics.std == pytest.approx(0.5, abs=1e-15)


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, 1.0])
@pytest.mark.parametrize("count", [2, 3, 7, 8])
def test_identical_rewards_give_exactly_0(kind, reward, count):
    """The mean of three times 0.1 is not 0.1 in floating point: no advantage may come of that, not even with eps 0."""
    statistics = group_statistics([reward] * count, kind, eps=1e-30)
    assert statistics.zero_variance
    assert statistics.advantages == (0.0,) * count
    assert statistics.mean == pytest.approx(reward)


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
def test_one_sample_has_no_advantage(kind):
    statistics = group_statistics([0.7], kind)
    assert (statistics.mean, statistics.std, statistics.advantages) == (0.7, 0.0, (0.0,))


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=16).filter(lambda rewards: len(set(rewards)) > 1))
def test_the_deviation_is_that_of_torch(rewards):
    statistics = group_statistics(rewards)
    values = torch.tensor(rewards, dtype=torch.float64)
    assert statistics.mean == pytest.approx(values.mean().item(), rel=1e-12)
    assert statistics.std == pytest.approx(values.std().item(), rel=1e-9)
    expected = (values - values.mean()) / (values.std() + 1e-4)
    assert statistics.advantages == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-12)

"""The first difference is found at its place, in the order in which one thing follows from another."""

from dataclasses import replace

import numpy as np
import pytest

from rolloutpipe_core.certify.difference import Difference, first_difference, first_position

from .conftest import as_run


def changed(array, position, value):
    copy = array.copy()
    copy[position] = value
    return copy


@pytest.fixture
def group(make_group):
    return make_group()


def with_sample(group, index, **changes):
    samples = list(group.samples)
    samples[index] = replace(samples[index], **changes)
    return replace(group, samples=tuple(samples))


def test_equal_runs_have_none(group, make_round):
    """Names and attempts do not count: only what was sampled and made of it."""
    other = replace(group, run="other", attempt=3, lineage=2)
    assert first_difference(as_run(make_round(group)), as_run(make_round(other)), "every round") is None
    assert make_round(group).samples_sha == make_round(other).samples_sha


def test_a_log_probability_that_differs_in_its_last_bit(group, make_round):
    logprobs = group.samples[1].behavior_logprobs
    changes = {"behavior_logprobs": changed(logprobs, 3, np.nextafter(logprobs[3], np.float32(0)))}
    other = with_sample(group, 1, **changes)
    found = first_difference(as_run(make_round(group)), as_run(make_round(other)), "every round")
    assert found == Difference(
        12, "behavior_logprobs", "-0.5", "-0.4999999701976776", group="r000012-g0034", sample=1, position=3
    )
    assert str(found) == (
        "round 12, group r000012-g0034, sample 1, position 3: behavior_logprobs is -0.4999999701976776, not -0.5"
    )
    assert make_round(group).samples_sha != make_round(other).samples_sha


def test_a_response_that_goes_on(group, make_round):
    ids = group.samples[0].response_ids
    other = with_sample(group, 0, response_ids=np.append(ids, np.int32(9)))
    found = first_difference(as_run(make_round(group)), as_run(make_round(other)), "every round")
    assert (found.what, found.position, found.expected, found.given) == ("response_ids", 3, "the end", "9")


def test_another_reward(group, make_round):
    other = with_sample(group, 1, reward=1.0)
    found = first_difference(as_run(make_round(group)), as_run(make_round(other)), "every round")
    assert str(found) == "round 12, group r000012-g0034, sample 1: reward is 1.0, not 0.25"


@pytest.mark.parametrize(
    ("ended", "given"), [({}, "absent"), ({"r000012-g0034": "filtered: equal rewards"}, "filtered: equal rewards")]
)
def test_a_group_that_was_not_trained(group, make_round, ended, given):
    found = first_difference(as_run(make_round(group)), as_run(make_round(ended=ended)), "first round")
    assert found == Difference(12, "its end", "trained on walk-7", given, group="r000012-g0034")


def test_samples_come_before_the_weights_that_they_make(group, make_round):
    first = make_round(group)
    weights = make_round(group, weights="c" * 64)
    both = make_round(with_sample(group, 0, reward=1.0), weights="c" * 64)
    assert first_difference(as_run(first), as_run(both), "every round").what == "reward"
    assert first_difference(as_run(first), as_run(weights), "every round").what == "version 13"
    state = make_round(group, state=None)
    assert first_difference(as_run(first), as_run(state), "every round").what == "the optimizer's state"
    assert first_difference(as_run(first), as_run(first, genesis="1" * 64), "every round").what == "version 0"


def test_the_promise_of_the_first_round_covers_its_samples_alone(group, make_round):
    first, weights = make_round(group), make_round(group, weights="c" * 64)
    later = make_round(with_sample(group, 0, reward=1.0))
    assert first_difference(as_run(first, first), as_run(weights, later), "first round") is None


@pytest.mark.parametrize(
    ("one", "other", "position"),
    [
        ([1, 2, 3], [1, 5, 4], 1),
        ([1, 2], [1, 2, 3], 2),
        ([], [7], 0),
        ([0.0], [-0.0], 0),  # equal numbers of other bits
        ([np.nan, 1.0], [np.nan, 2.0], 1),
    ],
)
def test_where_bits_part(one, other, position):
    kind = np.float32 if any(isinstance(value, float) for value in one + other) else np.int32
    assert first_position(np.array(one, kind), np.array(other, kind)) == position

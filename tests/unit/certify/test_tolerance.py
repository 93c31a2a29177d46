"""Rounding within eps is told from everything else, with numbers worked out by hand.

V = 4. The noise is Philox's own; log-probabilities are chosen so that the sums of two tokens tie or do not.
"""

from dataclasses import replace

import numpy as np
import pytest

from rolloutpipe_core.certify.tolerance import SampleCloseness, compare_samples, sample_closeness
from rolloutpipe_core.noise import GumbelStream, sample_seed

SEED, VOCABULARY, EPS = 5, 4, 1e-3


def stream(group=34, sample=0):
    return GumbelStream(sample_seed(SEED, 12, group, sample), VOCABULARY)


def response(sample, ids, logprobs, **changes):
    return replace(
        sample,
        response_ids=np.array(ids, np.int32),
        behavior_logprobs=np.array(logprobs, np.float32),
        loss_mask=np.ones(len(ids), np.uint8),
        **changes,
    )


def tied(position, token, other, logprob):
    """The log-probability with which `other` ties with `token` of this log-probability, at a position of sample 0."""
    noise = stream().take(position + 1)[position]
    return logprob + noise[token] - noise[other]


def test_the_same_response(make_sample):
    one = response(make_sample(), [0, 1, 2], [-1.0, -2.0, -3.0])
    other = response(make_sample(), [0, 1, 2], [-1.0, -2.25, -3.125])
    assert sample_closeness(one, other, stream()) == SampleCloseness(0.25, None, 0.0)


def test_a_tie(make_sample):
    """They part at position 1; what comes later is not compared."""
    one = response(make_sample(), [0, 1, 2], [-1.0, -2.0, -9.0])
    other = response(make_sample(), [0, 3], [-1.5, tied(1, 1, 3, -2.0)])
    close = sample_closeness(one, other, stream())
    assert (close.logprob, close.parted) == (0.5, 1)
    assert close.gap == pytest.approx(0.0, abs=1e-6)


def test_another_token_that_is_no_tie(make_sample):
    one = response(make_sample(), [0, 1], [-1.0, -2.0])
    other = response(make_sample(), [0, 3], [-1.0, tied(1, 1, 3, -2.0) + 0.25])
    assert sample_closeness(one, other, stream()).gap == pytest.approx(0.25, abs=1e-6)


def test_a_response_that_ends_early_is_never_a_tie(make_sample):
    one, other = (response(make_sample(), [0] * length, [-1.0] * length) for length in (2, 3))
    assert sample_closeness(one, other, stream()) == SampleCloseness(0.0, 2, np.inf)


@pytest.fixture
def compared(make_group, make_sample, make_round):
    """`compared(sample, sample)`: the closeness of two rounds of one group, and the first excess in words."""

    def compare(one, other):
        rounds = [make_round(make_group(samples=(sample,))) for sample in (one, other)]
        closeness, difference = compare_samples(*rounds, SEED, VOCABULARY, EPS)
        return closeness, difference and str(difference).removeprefix("round 12, group r000012-g0034, sample 0")

    return compare


def test_rounding_is_within(compared, make_sample):
    one = response(make_sample(), [0, 1], [-1.0, -2.0])
    closeness, difference = compared(one, response(make_sample(), [0, 1], [-1.0005, -2.0]))
    assert difference is None
    assert (closeness.samples, closeness.parted) == (1, 0)
    assert closeness.logprob == pytest.approx(5e-4, rel=1e-3)
    closeness, difference = compared(one, response(make_sample(), [0, 3], [-1.0, tied(1, 1, 3, -2.0)], reward=1.0))
    assert (difference, closeness.parted) == (None, 1), "another text may earn another reward"


def test_what_is_not_within_is_named(compared, make_sample):
    one = response(make_sample(), [0, 1], [-1.0, -2.0])
    allowed = "not at most 0.001 nats"
    _, far = compared(one, response(make_sample(), [0, 1], [-1.0, -2.5]))
    assert far == f": the largest difference of log-probabilities is 0.5, {allowed}"
    _, token = compared(one, response(make_sample(), [0, 3], [-1.0, tied(1, 1, 3, -2.0) + 0.25]))
    assert token == f", position 1: the distance between the tokens taken is 0.25, {allowed}"
    _, reward = compared(one, replace(one, reward=1.0))
    assert reward == ": the reward is 1.0, not 0.0"
    _, unknown = compared(one, response(make_sample(), [0, 1], [-1.0, np.nan]))
    assert unknown == f": the largest difference of log-probabilities is nan, {allowed}"


def test_a_missing_group_is_named(make_group, make_round):
    _, difference = compare_samples(make_round(make_group()), make_round(), SEED, VOCABULARY, EPS)
    assert str(difference) == "round 12, group r000012-g0034: its end is absent, not trained on walk-7"

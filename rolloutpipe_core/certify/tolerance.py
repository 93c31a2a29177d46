"""Two runs without `deterministic` may differ by rounding and by nothing else: what that leaves to check.

A token is argmax(logprob + noise), and the noise follows from the token's place alone. Let no log-probability of two
runs differ by more than eps. As long as two responses have the same tokens, their recorded log-probabilities show that.
Where the one takes a and the other b, with s the sum that each has for its own token,

    s1(a) >= s1(b) >= s2(b) - eps        s2(b) >= s2(a) >= s1(a) - eps        so |s1(a) - s2(b)| <= eps:

a and b are a tie within eps. What follows are different texts, which are not compared. Weights are, where all samples
are the same: as a part of how far the round moved them, since AdamW makes steps of one size of gradients of any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rolloutpipe_core.certify.difference import Difference, common_groups, end_differences, first_position
from rolloutpipe_core.certify.evidence import RoundEvidence
from rolloutpipe_core.domain import Sample
from rolloutpipe_core.noise import GumbelStream, sample_seed


class Tolerance(NamedTuple):
    logprob: float  # nats
    movement: float  # part of the distance by which the round moved the weights


TOLERANCES = {"float32": Tolerance(1e-4, 0.01), "bfloat16": Tolerance(0.5, 0.2)}
"""By model.dtype. Log-probabilities: a logit near 16 has steps of 2e-6 in float32 and of 0.125 in bfloat16; fifty of
them, and four. Weights: some fifty times what float32 showed; in bfloat16 the weights themselves are rounded."""


@dataclass(slots=True)
class Closeness:
    """How near a run came to the one that it is compared with."""

    samples: int = 0
    parted: int = 0  # samples that took another token at a tie
    logprob: float = 0.0  # largest difference of log-probabilities before, nats
    movement: float | None = None  # of the weights; None: not compared


class SampleCloseness(NamedTuple):
    logprob: float  # largest difference over the tokens before `parted`, nats
    parted: int | None  # position of the first different token; None: the responses are the same
    gap: float  # between the two tokens there, each with its noise; inf when one response has ended


def sample_closeness(one: Sample, other: Sample, noise: GumbelStream) -> SampleCloseness:
    """`noise` is that with which both were sampled."""
    ids, logprobs = ((one.response_ids, other.response_ids), (one.behavior_logprobs, other.behavior_logprobs))
    same = np.array_equal(*ids)
    end = len(ids[0]) if same else first_position(*ids)
    largest = float(np.abs(logprobs[0][:end] - logprobs[1][:end]).max(initial=0))
    if same:
        return SampleCloseness(largest, None, 0.0)
    if end == min(map(len, ids)):
        return SampleCloseness(largest, end, math.inf)
    noise.seek(end)
    (drawn,) = noise.take(1)
    sums = [float(logprob[end]) + float(drawn[tokens[end]]) for tokens, logprob in zip(ids, logprobs, strict=True)]
    return SampleCloseness(largest, end, abs(sums[0] - sums[1]))


def compare_samples(
    expected: RoundEvidence, given: RoundEvidence, seed: int, vocabulary: int, tolerance: float
) -> tuple[Closeness, Difference | None]:
    """How near the samples of a round are, and the first difference that is no rounding within `tolerance` nats.

    `seed` is that of both runs; `vocabulary`: how many logits the model has.
    """
    measured = Closeness()
    for difference in end_differences(expected, given):
        return measured, difference
    for group, same in common_groups(expected, given):
        for one, other in zip(group.samples, same.samples, strict=True):
            noise = GumbelStream(sample_seed(seed, expected.round, group.index, one.index), vocabulary)
            close = sample_closeness(one, other, noise)
            measured.samples += 1
            measured.parted += close.parted is not None
            measured.logprob = max(measured.logprob, close.logprob)
            for what, wanted, found in _excesses(one, other, close, tolerance):
                return measured, Difference(expected.round, what, wanted, found, group.id, one.index, close.parted)
    return measured, None


def _excesses(one: Sample, other: Sample, close: SampleCloseness, tolerance: float) -> Iterator[tuple[str, str, str]]:
    allowed = f"at most {tolerance:g} nats"
    if not close.logprob <= tolerance:
        yield "the largest difference of log-probabilities", allowed, f"{close.logprob:.3g}"
    if not close.gap <= tolerance:
        yield "the distance between the tokens taken", allowed, f"{close.gap:.3g}"
    if close.parted is None and one.reward != other.reward:
        yield "the reward", str(one.reward), str(other.reward)

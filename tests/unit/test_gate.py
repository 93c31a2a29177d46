"""Every reason of the gate, alone: a group that is right but for one thing."""

from dataclasses import replace

import numpy as np
import pytest

from rolloutpipe_core.domain import FinishReason, VersionSpan, WeightVersion
from rolloutpipe_core.gate import Expectation, why_altered, why_rejected
from rolloutpipe_core.store.groups import encode_group, reference_of

OURS = WeightVersion(12, "ab" * 32)
EXPECTED = Expectation(run="demo", lineage=1, version=OURS, samples_per_group=2, attempt=1, vocabulary=10)


def verdict(group, expected=EXPECTED, /, **announced):
    """The gate's answer to a group announced as it is, but for `announced`."""
    ref = reference_of(group, encode_group(group))
    return why_rejected(group, replace(ref, **announced), expected)


def test_a_valid_group_passes(make_group):
    assert verdict(make_group()) is None
    assert verdict(make_group(), replace(EXPECTED, vocabulary=None)) is None


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (WeightVersion(11, "ab" * 32), "stale version: object v11@abababababab, round v12@abababababab"),
        (WeightVersion(12, "cd" * 32), "stale version: object v12@cdcdcdcdcdcd, round v12@abababababab"),
    ],
)
def test_another_number_or_another_manifest_is_stale(make_group, make_sample, version, reason):
    samples = (make_sample(0, version=version), make_sample(1, version=version))
    assert verdict(make_group(version=version, samples=samples)) == reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": "other"}, "wrong run: object other, expected demo"),
        ({"lineage": 2}, "wrong lineage: object 2, announced 2, expected 1"),
        ({"attempt": 2}, "old attempt: object 2, announced 2, current 1"),
    ],
)
def test_identity_of_the_object(make_group, change, reason):
    assert verdict(make_group(**change)) == reason


@pytest.mark.parametrize(
    ("announced", "reason"),
    [
        ({"lineage": 2}, "wrong lineage: object 1, announced 2, expected 1"),
        ({"index": 33}, "wrong group: object r000012-g0034, announced r000012-g0034 (round 12, index 33)"),
        ({"round": 11}, "wrong group: object r000012-g0034, announced r000012-g0034 (round 11, index 34)"),
        (
            {"group": "r000012-g0033"},
            "wrong group: object r000012-g0034, announced r000012-g0033 (round 12, index 34)",
        ),
        ({"attempt": 2}, "old attempt: object 1, announced 2, current 1"),
        (
            {"version": WeightVersion(12, "cd" * 32)},
            "wrong version: object v12@abababababab, announced v12@cdcdcdcdcdcd",
        ),
        ({"samples": 3}, "wrong samples: object 2, announced 3"),
        ({"tokens": 13}, "wrong tokens: object 12, announced 13"),
    ],
)
def test_the_object_is_what_was_announced(make_group, announced, reason):
    assert verdict(make_group(), **announced) == reason


def test_an_object_of_an_older_attempt_than_the_current(make_group):
    assert verdict(make_group(), replace(EXPECTED, attempt=3)) == "old attempt: object 1, announced 1, current 3"


@pytest.mark.parametrize("indices", [(0,), (0, 1, 2), (0, 0), (1, 2)])
def test_exactly_k_samples_numbered_from_zero(make_group, make_sample, indices):
    group = make_group(samples=tuple(make_sample(index) for index in indices))
    assert verdict(group) == f"wrong samples: indices {list(indices)}, expected 0 to 1"


def test_samples_may_come_in_any_order(make_group, make_sample):
    assert verdict(make_group(samples=(make_sample(1), make_sample(0)))) is None


def logprobs(*values):
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"finish_reason": FinishReason.ABORT}, "aborted"),
        ({"prompt_ids": np.array([], dtype=np.int32)}, "empty prompt"),
        ({"behavior_logprobs": logprobs(-1, -1)}, "unequal lengths: 3 ids, 2 logprobs, 3 mask"),
        ({"loss_mask": np.ones(4, dtype=np.uint8)}, "unequal lengths: 3 ids, 3 logprobs, 4 mask"),
        ({"behavior_logprobs": logprobs(-1, np.nan, -1)}, "logprob not finite"),
        ({"behavior_logprobs": logprobs(-1, -np.inf, -1)}, "logprob not finite"),
        ({"behavior_logprobs": logprobs(-1, 0.25, -1)}, "positive logprob: 0.25"),
        ({"loss_mask": np.array([1, 2, 1], dtype=np.uint8)}, "mask other than 0 and 1"),
        ({"reward": float("nan")}, "reward not finite"),
        ({"advantage": float("inf")}, "advantage not finite"),
        ({"response_ids": np.array([1, 10, 2], dtype=np.int32)}, "id outside the vocabulary of 10"),
        ({"prompt_ids": np.array([-1], dtype=np.int32)}, "id outside the vocabulary of 10"),
    ],
)
def test_each_sample(make_group, make_sample, changes, reason):
    group = make_group(samples=(make_sample(0), make_sample(1, **changes)))
    assert verdict(group) == f"sample 1: {reason}"


def test_an_empty_response(make_group, make_sample):
    assert verdict(make_group(samples=(make_sample(0), make_sample(1, length=0, spans=())))) == (
        "sample 1: empty response"
    )


def test_a_logprob_may_exceed_zero_by_rounding_only(make_group, make_sample):
    rounded = make_sample(1, behavior_logprobs=logprobs(9e-7, 0, -1))
    assert verdict(make_group(samples=(make_sample(0), rounded))) is None
    above = make_sample(1, behavior_logprobs=logprobs(2e-6, 0, -1))
    assert verdict(make_group(samples=(make_sample(0), above))) == "sample 1: positive logprob: 2e-06"


OTHER = WeightVersion(11, "cd" * 32)


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        (
            [(OURS, 0, 2), (OTHER, 2, 3)],
            "mixed versions: tokens 2 to 3 by v11@cdcdcdcdcdcd, round v12@abababababab",
        ),
        ([], "broken spans: cover 0 of 3 tokens"),
        ([(OURS, 0, 2)], "broken spans: cover 2 of 3 tokens"),
        ([(OURS, 0, 4)], "broken spans: cover 4 of 3 tokens"),
        ([(OURS, 1, 3)], "broken spans: [1, 3) after token 0"),
        ([(OURS, 0, 1), (OURS, 2, 3)], "broken spans: [2, 3) after token 1"),
        ([(OURS, 0, 2), (OURS, 1, 3)], "broken spans: [1, 3) after token 2"),
        ([(OURS, 0, 0), (OURS, 0, 3)], "broken spans: [0, 0) after token 0"),
    ],
)
def test_spans_are_one_version_and_cover_every_token(make_group, make_sample, spans, reason):
    sample = make_sample(1, spans=tuple(VersionSpan(*span) for span in spans))
    assert verdict(make_group(samples=(make_sample(0), sample))) == f"sample 1: {reason}"


def test_several_spans_of_the_one_version_pass(make_group, make_sample):
    spans = (VersionSpan(OURS, 0, 1), VersionSpan(OURS, 1, 3))
    assert verdict(make_group(samples=(make_sample(0), make_sample(1, spans=spans)))) is None


def test_altered_bytes(make_group):
    data = encode_group(make_group())
    ref = replace(reference_of(make_group(), data), sha256="ef" * 32)
    assert why_altered(data, reference_of(make_group(), data)) is None
    reason = why_altered(data, ref)
    assert reason is not None and reason.startswith("altered object: sha256 ")
    assert reason.endswith(", announced efefefefefef")

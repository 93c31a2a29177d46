"""The on-policy gate: why a group may not be trained. Pure, and without an off switch.

The trainer asks before it accumulates a group, the rollout side before it publishes one. Reasons are short
and stable: they are stored with the group's end and read by people.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rolloutpipe_core.domain import FinishReason, Group, GroupRef, Sample, WeightVersion

LARGEST_LOGPROB = 1e-6
"""A log-probability is at most 0; this much is left to float32's rounding."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the round admits."""

    run: str
    lineage: int
    version: WeightVersion  # of the round
    samples_per_group: int  # K
    attempt: int  # the group's current one
    vocabulary: int | None = None  # ids must lie in [0, vocabulary); None: not known here


def why_rejected(group: Group, ref: GroupRef, expected: Expectation) -> str | None:
    """The first reason against training this group, or None.

    `ref` is the announcement under which the group was fetched; its bytes were checked with `why_altered`.
    """
    return next(_reasons(group, ref, expected), None)


def why_altered(data: bytes, ref: GroupRef) -> str | None:
    """The reason when these are not the announced bytes, else None. To be asked before decoding."""
    found = hashlib.sha256(data).hexdigest()
    if found == ref.sha256:
        return None
    return f"altered object: sha256 {found[:12]}, announced {ref.sha256[:12]}"


def _reasons(group: Group, ref: GroupRef, expected: Expectation) -> Iterator[str]:
    if group.version != expected.version:
        yield f"stale version: object {group.version}, round {expected.version}"
    yield from _identity(group, ref, expected)
    indices = sorted(sample.index for sample in group.samples)
    if indices != list(range(expected.samples_per_group)):
        yield f"wrong samples: indices {indices}, expected 0 to {expected.samples_per_group - 1}"
    sound = _all_sound(group.samples, expected.vocabulary)
    for sample in group.samples:
        for reason in (*_shape(sample, expected.version), *(() if sound else _values(sample, expected.vocabulary))):
            yield f"sample {sample.index}: {reason}"
    if group.tokens != ref.tokens:
        yield f"wrong tokens: object {group.tokens}, announced {ref.tokens}"


def _identity(group: Group, ref: GroupRef, expected: Expectation) -> Iterator[str]:
    if group.run != expected.run:
        yield f"wrong run: object {group.run}, expected {expected.run}"
    if (group.lineage, ref.lineage) != (expected.lineage, expected.lineage):
        yield f"wrong lineage: object {group.lineage}, announced {ref.lineage}, expected {expected.lineage}"
    if (group.round, group.index) != (ref.round, ref.index) or group.id != ref.group:
        yield f"wrong group: object {group.id}, announced {ref.group} (round {ref.round}, index {ref.index})"
    if (group.attempt, ref.attempt) != (expected.attempt, expected.attempt):
        yield f"old attempt: object {group.attempt}, announced {ref.attempt}, current {expected.attempt}"
    if ref.version != group.version:
        yield f"wrong version: object {group.version}, announced {ref.version}"
    if len(group.samples) != ref.samples:
        yield f"wrong samples: object {len(group.samples)}, announced {ref.samples}"


def _all_sound(samples: Sequence[Sample], vocabulary: int | None) -> bool:
    """Whether `_values` has nothing to say of any sample: the whole group's numbers at once, in a tenth of the time."""
    logprobs = np.concatenate([sample.behavior_logprobs for sample in samples])
    masks = np.concatenate([sample.loss_mask for sample in samples])
    numbers = [number for sample in samples for number in (sample.reward, sample.advantage)]
    # A nan makes both extremes nan, which no comparison holds for.
    sound = logprobs.min(initial=0.0) > -math.inf and logprobs.max(initial=-1.0) <= LARGEST_LOGPROB
    sound = sound and masks.max(initial=0) <= 1 and all(map(math.isfinite, numbers))
    if not sound or vocabulary is None:
        return bool(sound)
    ids = np.concatenate([ids for sample in samples for ids in (sample.prompt_ids, sample.response_ids)])
    return bool(ids.min(initial=0) >= 0 and ids.max(initial=0) < vocabulary)


def _shape(sample: Sample, version: WeightVersion) -> Iterator[str]:
    if sample.finish_reason is FinishReason.ABORT:
        yield "aborted"
    length = len(sample.response_ids)
    if length == 0:
        yield "empty response"
    if len(sample.prompt_ids) == 0:
        yield "empty prompt"
    if not length == len(sample.behavior_logprobs) == len(sample.loss_mask):
        yield (f"unequal lengths: {length} ids, {len(sample.behavior_logprobs)} logprobs, {len(sample.loss_mask)} mask")
    yield from _spans(sample, version)


def _values(sample: Sample, vocabulary: int | None) -> Iterator[str]:
    if not np.isfinite(sample.behavior_logprobs).all():
        yield "logprob not finite"
    elif (sample.behavior_logprobs > LARGEST_LOGPROB).any():
        yield f"positive logprob: {sample.behavior_logprobs.max():.3g}"
    if (sample.loss_mask > 1).any():
        yield "mask other than 0 and 1"
    if not math.isfinite(sample.reward):
        yield "reward not finite"
    if not math.isfinite(sample.advantage):
        yield "advantage not finite"
    if vocabulary is not None:
        ids = np.concatenate([sample.prompt_ids, sample.response_ids])
        if ((ids < 0) | (ids >= vocabulary)).any():
            yield f"id outside the vocabulary of {vocabulary}"


def _spans(sample: Sample, version: WeightVersion) -> Iterator[str]:
    for span in sample.spans:
        if span.version != version:
            yield f"mixed versions: tokens {span.start} to {span.end} by {span.version}, round {version}"
    end = 0
    for span in sample.spans:
        if span.start != end or span.end <= span.start:
            yield f"broken spans: [{span.start}, {span.end}) after token {end}"
        end = span.end
    if end != len(sample.response_ids):
        yield f"broken spans: cover {end} of {len(sample.response_ids)} tokens"

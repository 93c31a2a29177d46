"""The first thing in which two runs differ, to the bit: pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolloutpipe_core.certify.evidence import ARRAYS, FACTS, RoundEvidence, RunEvidence
from rolloutpipe_core.certify.variants import Promise
from rolloutpipe_core.domain import Group, Sample


@dataclass(frozen=True, slots=True)
class Difference:
    """Where, what, and what stands there in the run to compare with and in the other."""

    round: int
    what: str
    expected: str
    given: str
    group: str | None = None
    sample: int | None = None
    position: int | None = None  # in the response, or in what `what` names

    def __str__(self) -> str:
        place = [f"round {self.round}"]
        place += [f"{name} {value}" for name in ("group", "sample") if (value := getattr(self, name)) is not None]
        if self.position is not None:
            place.append(f"position {self.position}")
        return f"{', '.join(place)}: {self.what} is {self.given}, not {self.expected}"


def first_difference(expected: RunEvidence, given: RunEvidence, promise: Promise) -> Difference | None:
    """In the order in which one thing follows from another: weights, samples, the next weights."""
    return next(_differences(expected, given, promise), None)


def _differences(expected: RunEvidence, given: RunEvidence, promise: Promise) -> Iterator[Difference]:
    if expected.genesis != given.genesis:
        yield Difference(0, "version 0", expected.genesis, given.genesis)
    for one, other in zip(expected.rounds, given.rounds, strict=True):
        yield from _sample_differences(one, other)
        if promise == "first round":
            return
        if one.weights != other.weights:
            yield Difference(one.round, f"version {one.round + 1}", one.weights, other.weights)
        if one.state != other.state:
            yield Difference(one.round, "the optimizer's state", str(one.state), str(other.state))


def _sample_differences(expected: RoundEvidence, given: RoundEvidence) -> Iterator[Difference]:
    yield from end_differences(expected, given)
    for one, other in common_groups(expected, given):
        yield from _group_differences(expected.round, one, other)


def end_differences(expected: RoundEvidence, given: RoundEvidence) -> Iterator[Difference]:
    """Groups that were trained in one run only, or were made of different prompts."""
    ends = [{group.id: f"trained on {group.prompt_id}" for group in evidence.groups} | evidence.ended
            for evidence in (expected, given)]  # fmt: skip
    for group in sorted({*ends[0], *ends[1]}):
        one, other = (end.get(group, "absent") for end in ends)
        if one != other:
            yield Difference(expected.round, "its end", one, other, group=group)


def common_groups(expected: RoundEvidence, given: RoundEvidence) -> Iterator[tuple[Group, Group]]:
    """The trained groups of two rounds without differences in their ends."""
    return zip(expected.groups, given.groups, strict=True)


def _group_differences(round: int, expected: Group, given: Group) -> Iterator[Difference]:
    for one, other in zip(expected.samples, given.samples, strict=True):
        for what, wanted, found, position in _of_sample(one, other):
            yield Difference(round, what, wanted, found, expected.id, one.index, position)


def _of_sample(expected: Sample, given: Sample) -> Iterator[tuple[str, str, str, int | None]]:
    """(what, value, value, position) of each array's first difference and of each fact that differs."""
    for name in ARRAYS:
        one, other = getattr(expected, name), getattr(given, name)
        if one.tobytes() != other.tobytes():
            position = first_position(one, other)
            yield name, _text(one, position), _text(other, position), position
    for name in FACTS:
        one, other = getattr(expected, name), getattr(given, name)
        if one != other:
            yield name, str(one), str(other), None


def first_position(one: NDArray[Any], other: NDArray[Any]) -> int:
    """Where the bits of two different arrays of one type part; their common length when one begins the other."""
    shared, bits = min(len(one), len(other)), f"u{one.itemsize}"
    differing = np.flatnonzero(one[:shared].view(bits) != other[:shared].view(bits))
    return int(differing[0]) if len(differing) else shared


def _text(array: NDArray[Any], position: int) -> str:
    return repr(array[position].item()) if position < len(array) else "the end"

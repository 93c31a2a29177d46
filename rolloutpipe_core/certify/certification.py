"""Compares runs with the first of them, as they come, and keeps their hashes.

to the bit (`deterministic`): weights, samples, the next weights, ... as far as the configuration promises
within rounding: the first round's samples, and the version that it made where all of its samples are the same
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from rolloutpipe_core.certify.difference import Difference, first_difference
from rolloutpipe_core.certify.evidence import RunEvidence, read_evidence
from rolloutpipe_core.certify.movement import relative_distance
from rolloutpipe_core.certify.tolerance import TOLERANCES, Closeness, compare_samples
from rolloutpipe_core.certify.variants import Variant, promise
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.scratch import scratch_folder
from rolloutpipe_core.store.cache import DirectoryCache
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.weights import fetch_weights, weights_prefix


@dataclass(frozen=True, slots=True)
class Result:
    """One run, and what it is to the first."""

    run: str
    schedule: str
    workers: int
    seconds: float
    samples: tuple[str, ...]  # sha256 of each round's
    weights: tuple[str, ...]  # sha256 of each version's manifest, from 0
    optimizer_states: tuple[str | None, ...]  # the same of the state after each round
    closeness: Closeness | None  # to the first run; None: compared to the bit
    difference: Difference | None


class Certification:
    """One configuration's runs. `config` is deterministic when they are to be the same to the bit."""

    def __init__(self, config: RunConfig, store: ObjectStore) -> None:
        self.config = config
        self.promise = promise(config)
        self.results: list[Result] = []
        self._store = store
        self._first: RunEvidence | None = None

    @property
    def certified(self) -> bool:
        return all(result.difference is None for result in self.results)

    @property
    def moved(self) -> bool:
        """Whether any round changed the weights; not when all rewards of each group are equal."""
        return any(len({*result.weights}) > 1 for result in self.results)

    def add(self, variant: Variant, run: str, seconds: float) -> Result:
        """Compare a run that is complete. Raises Damaged when its objects are not what it committed."""
        evidence = read_evidence(self._store, run)
        first = self._first = self._first or evidence
        if self.config.deterministic:
            closeness, difference = None, first_difference(first, evidence, self.promise)
        else:
            closeness, difference = self._within_rounding(first, evidence)
        result = Result(
            run=run,
            schedule=str(variant.schedule),
            workers=variant.workers,
            seconds=round(seconds, 1),
            samples=tuple(each.samples_sha for each in evidence.rounds),
            weights=(evidence.genesis, *(each.weights for each in evidence.rounds)),
            optimizer_states=tuple(each.state for each in evidence.rounds),
            closeness=closeness,
            difference=difference,
        )
        self.results.append(result)
        return result

    def _within_rounding(self, first: RunEvidence, given: RunEvidence) -> tuple[Closeness, Difference | None]:
        tolerance = TOLERANCES[self.config.model.dtype]
        vocabulary = json.loads(self._store.get(f"{weights_prefix(first.run, first.genesis)}/config.json"))[
            "vocab_size"
        ]
        closeness, difference = compare_samples(
            first.rounds[0], given.rounds[0], self.config.seed, vocabulary, tolerance.logprob
        )
        if difference is None and not closeness.parted and self.promise == "every round":
            closeness.movement = self._movement(first, given)
            if not closeness.movement <= tolerance.movement:
                allowed, found = (
                    f"{value:.3g} of the round's movement" for value in (tolerance[1], closeness.movement)
                )
                difference = Difference(0, "the distance of version 1", f"at most {allowed}", found)
        return closeness, difference

    def _movement(self, first: RunEvidence, given: RunEvidence) -> float:
        versions = [
            (first.run, first.genesis),
            (first.run, first.rounds[0].weights),
            (given.run, given.rounds[0].weights),
        ]
        with scratch_folder() as folder, DirectoryCache(folder, keep=len(versions)) as cache:
            start, expected, other = [fetch_weights(self._store, run, sha, cache) for run, sha in versions]
            return relative_distance(start, expected, other)

"""What of a run's objects may go: pure functions over the chain's end, the pins, a listing and the configuration.

    groups/r000012      kept for `keep_rounds` rounds after its commit
    weights/3f9a61…     kept for the newest `keep_versions` versions, for a pin, and version 0 for the KL reference
    checkpoints/r…-e…   kept for the newest `keep_versions` versions

Names are content hashes or belong to one attempt, so references are counted by name: equal weights under two versions
are one set. Only what is older than the head's commit is judged: its round is decided, so that what is nobody's then
stays so, and a decision that is carried out late does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from rolloutpipe_core.config.models import RetentionConfig
from rolloutpipe_core.store.objects import ObjectInfo

SET = re.compile(r"runs/[^/]+/(groups/r\d{6,}|weights/[0-9a-f]{16}|checkpoints/[^/]+)/.+")


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What one commit refers to."""

    round: int
    weights: str  # set of the version that it makes: "weights/3f9a61b2c4d5e6f7"
    checkpoint: str | None  # "checkpoints/r000012-e3-5f1c9a"
    objects: frozenset[str]  # keys of its groups


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """The newest commits, as many as retention looks at."""

    first: str  # set of version 0's weights
    commits: tuple[CommitFacts, ...]  # consecutive, the newest last; at least `keep_versions`, or all there are
    modified: datetime  # when the head was written, by the store's clock

    @property
    def round(self) -> int:
        """Of the head; -1 for the genesis."""
        return self.commits[-1].round if self.commits else -1

    def names(self) -> set[str]:
        """Sets that these commits or the genesis refer to, or did."""
        checkpoints = {facts.checkpoint for facts in self.commits if facts.checkpoint}
        return {self.first, *(facts.weights for facts in self.commits), *checkpoints}


@dataclass(frozen=True, slots=True)
class ObjectSet:
    """Objects that come and go together: a round's groups, a version's weights, a checkpoint."""

    name: str  # "groups/r000012", "weights/3f9a61b2c4d5e6f7", "checkpoints/r000012-e3-5f1c9a"
    keys: tuple[str, ...]
    bytes: int
    modified: datetime  # of its newest object


def object_sets(listing: Iterable[ObjectInfo]) -> Iterator[ObjectSet]:
    """The sets of a listing in the order of its keys; objects of other names belong to none."""
    for name, infos in groupby(listing, key=lambda info: set_of(info.key)):
        if name is not None:
            found = list(infos)
            modified = max(info.modified for info in found if info.modified)
            yield ObjectSet(name, tuple(info.key for info in found), sum(info.bytes for info in found), modified)


def set_of(key: str) -> str | None:
    """`set_of("runs/demo/groups/r000012/g0001-ab.arrow") == "groups/r000012"`."""
    match = SET.fullmatch(key)
    return match[1] if match else None


def held(end: ChainEnd, retention: RetentionConfig, reference: bool) -> set[str]:
    """Weights and checkpoints that the newest versions need; `reference`: the KL term needs version 0."""
    newest = end.commits[-retention.keep_versions :]
    kept = {facts.weights for facts in newest} | {facts.checkpoint for facts in newest if facts.checkpoint}
    if reference or end.round + 1 < retention.keep_versions:
        kept.add(end.first)
    return kept


def is_due(round: int, end: ChainEnd, retention: RetentionConfig) -> bool:
    """Whether a round's groups have stayed long enough."""
    return retention.keep_rounds is not None and end.round - round >= retention.keep_rounds


def due(
    found: Iterable[ObjectSet],
    end: ChainEnd,
    retention: RetentionConfig,
    reference: bool,
    pinned: Collection[str],
    now: datetime,
) -> list[ObjectSet]:
    """The sets that nothing refers to any more; `now` is the store's clock."""
    stay, named = held(end, retention, reference) | set(pinned), end.names()

    def may_go(candidate: ObjectSet) -> bool:
        if candidate.name.startswith("groups/"):
            return is_due(round_of(candidate.name), end, retention)
        if candidate.name in stay or candidate.modified >= end.modified:
            return False
        return candidate.name in named or is_old(candidate.modified, retention, now)

    return [candidate for candidate in found if may_go(candidate)]


def orphans(
    listing: Iterable[ObjectInfo], end: ChainEnd, retention: RetentionConfig, now: datetime
) -> list[ObjectInfo]:
    """Group files of committed rounds that their commits do not name: lost, damaged and refused attempts."""
    objects = {facts.round: facts.objects for facts in end.commits}

    def is_orphan(info: ObjectInfo) -> bool:
        name = set_of(info.key)
        if name is None or not name.startswith("groups/") or info.modified is None:
            return False
        mine = objects.get(round_of(name))
        if mine is None or info.key in mine:
            return False
        return info.modified < end.modified and is_old(info.modified, retention, now)

    return [info for info in listing if is_orphan(info)]


def is_old(modified: datetime, retention: RetentionConfig, now: datetime) -> bool:
    return now - modified >= timedelta(seconds=retention.orphan_age_s)


def round_of(name: str) -> int:
    """`round_of("groups/r000012") == 12`."""
    return int(name.removeprefix("groups/r"))

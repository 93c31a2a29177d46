"""Carries out what `decide` says: retire, delete a pass later, and sweep what is nobody's.

    chain's end, listing, pins ──> due ──> retire (ledger, fenced) ──> nothing yet: they ripen
                                                 └── ripe ──> chain's end and pins again: still due? ──> delete

A pass that dies anywhere is repeated by the next: what is retired stays so, what is half deleted is listed again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain as chained
from itertools import takewhile

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.ledger.retention import Pins, RetentionLedger
from rolloutpipe_core.retention.decide import (
    ChainEnd,
    CommitFacts,
    ObjectSet,
    due,
    held,
    is_due,
    is_old,
    object_sets,
    orphans,
    round_of,
    set_of,
)
from rolloutpipe_core.store.commits import Commit, CommitChain, Genesis, commit_key, genesis_key
from rolloutpipe_core.store.directories import MANIFEST
from rolloutpipe_core.store.objects import ObjectInfo, ObjectStore
from rolloutpipe_core.store.weights import weights_prefix

RIPE_S = 5.0
"""Between retiring and deleting at least; more than the second that Redis may lose."""
MOST_SETS = 500
"""Sets of one pass; a backlog takes several."""
SLACK = 8
"""Commits read beyond those that hold something, so that what a restart interrupted is still known by name."""
PROBES, PROBE_AGE_S = "probes/", 3600.0
"""A probe of the store takes seconds; what is older was left by a process that was killed."""

log = logging.getLogger("rolloutpipe.retention")


@dataclass(frozen=True, slots=True)
class Removed:
    """What a pass deleted."""

    objects: int = 0
    bytes: int = 0


class Retention:
    """The retention of one run under one trainer incarnation. Not thread-safe: one pass at a time."""

    def __init__(
        self,
        config: RunConfig,
        store: ObjectStore,
        chain: CommitChain,
        ledger: RetentionLedger,
        pins: Pins,
        ripe_s: float = RIPE_S,
    ) -> None:
        self._config = config
        self._retention = config.retention
        self._reference = config.loss.kl_coefficient > 0
        self._store = store
        self._chain = chain
        self._ledger = ledger
        self._pins = pins
        self._ripe_s = ripe_s
        self._folder = f"runs/{config.run}/"
        self._first = ""
        self._commits: list[CommitFacts] = []
        self._swept_s: float | None = None

    def apply(self) -> Removed:
        """One pass. Raises Fenced, Damaged for a broken chain, and the errors of store and ledger."""
        end = self._chain_end()
        if end.round < 0:
            return Removed()
        found = list(self._found(end))
        candidates = self._due(found, end)[:MOST_SETS]
        names = [candidate.name for candidate in candidates]
        ripe = set(self._ledger.retire(names, self._retention.grace_s, self._ripe_s))
        self._settle_others(found, end)
        removed = self._delete([candidate for candidate in candidates if candidate.name in ripe])
        swept = self._sweep(end) if self._sweep_is_due() else Removed()
        return Removed(removed.objects + swept.objects, removed.bytes + swept.bytes)

    def _due(self, found: Sequence[ObjectSet], end: ChainEnd) -> list[ObjectSet]:
        pinned = {pin.set for pin in self._pins.pins()}
        return due(found, end, self._retention, self._reference, pinned, self._store.now())

    def _found(self, end: ChainEnd) -> Iterator[ObjectSet]:
        """Weights, checkpoints and the groups that are due; keys are listed in order, so the oldest rounds first."""

        def may_go(info: ObjectInfo) -> bool:
            name = set_of(info.key)
            return name is None or is_due(round_of(name), end, self._retention)

        yield from object_sets(takewhile(may_go, self._store.list(f"{self._folder}groups/")))
        yield from object_sets(self._store.list(f"{self._folder}weights/"))
        yield from object_sets(self._store.list(f"{self._folder}checkpoints/"))

    def _settle_others(self, found: Sequence[ObjectSet], end: ChainEnd) -> None:
        """Retired sets that are referred to again are kept; those that are gone were deleted by a pass that died.

        Rounds that are not due, for more are kept than before, stay retired: they may have gone by half.
        """
        retired = [name for name in self._ledger.retired() if self._is_looked_at(name, end)]
        kept = held(end, self._retention, self._reference).intersection(retired)
        gone = set(retired).difference(kept, (candidate.name for candidate in found))
        if kept:
            self._ledger.kept(sorted(kept))
        if gone:
            self._ledger.deleted(sorted(gone), 0, 0)

    def _is_looked_at(self, name: str, end: ChainEnd) -> bool:
        return not name.startswith("groups/") or is_due(round_of(name), end, self._retention)

    def _delete(self, ripe: Sequence[ObjectSet]) -> Removed:
        """Look at chain and pins once more, then delete; a manifest goes first, for it says that a set is whole."""
        chosen = self._due(ripe, self._chain_end()) if ripe else []
        if not chosen:
            return Removed()
        keys = list(chained.from_iterable(candidate.keys for candidate in chosen))
        manifests = [key for key in keys if key.endswith(f"/{MANIFEST}")]
        self._store.delete_many(manifests)
        self._store.delete_many(key for key in keys if not key.endswith(f"/{MANIFEST}"))
        removed = Removed(len(keys), sum(candidate.bytes for candidate in chosen))
        self._ledger.deleted((candidate.name for candidate in chosen), removed.objects, removed.bytes)
        log.info("deleted %d objects of %d sets, %d bytes", removed.objects, len(chosen), removed.bytes)
        return removed

    def _sweep_is_due(self) -> bool:
        """At the first pass, then once in each `orphan_age_s`: it lists all groups that are kept."""
        return self._swept_s is None or time.monotonic() - self._swept_s >= self._retention.orphan_age_s

    def _sweep(self, end: ChainEnd) -> Removed:
        """Delete group files of lost attempts, uploads that nobody completes, and probes that were killed."""
        now, retention = self._store.now(), self._retention
        found = orphans(self._store.list(f"{self._folder}groups/"), end, retention, now)
        self._store.delete_many(info.key for info in found)
        for upload in list(self._store.unfinished_uploads(self._folder)):
            if upload.begun < end.modified and is_old(upload.begun, retention, now):
                self._store.abort_upload(upload)
        age_s = max(PROBE_AGE_S, retention.orphan_age_s)
        probes = [info for info in self._store.list(PROBES) if (now - (info.modified or now)).total_seconds() > age_s]
        self._store.delete_many(info.key for info in probes)
        swept = Removed(len(found), sum(info.bytes for info in found))
        if found:
            self._ledger.swept(sorted({name for info in found if (name := set_of(info.key))}), len(found), swept.bytes)
            log.info("swept %d objects that were nobody's, %d bytes", swept.objects, swept.bytes)
        self._swept_s = time.monotonic()
        return swept

    def _chain_end(self) -> ChainEnd:
        """The chain's end now; what was read before is only read on from."""
        if not self._first:
            self._first = self._set(self._chain.genesis().commit.weights_sha)
        keep_rounds, keep_versions = self._retention.keep_rounds, self._retention.keep_versions
        window = None if keep_rounds is None else max(keep_rounds, keep_versions) + SLACK
        known = self._commits[-1].round if self._commits else -1
        self._commits += [self._facts(link.commit) for link in self._chain.tail(window, known)]
        self._commits = self._commits if window is None else self._commits[-window:]
        head = commit_key(self._config.run, self._commits[-1].round) if self._commits else genesis_key(self._config.run)
        modified = next(info.modified for info in self._store.list(head) if info.key == head)
        assert modified is not None
        return ChainEnd(self._first, tuple(self._commits), modified)

    def _facts(self, commit: Genesis | Commit) -> CommitFacts:
        assert isinstance(commit, Commit)
        checkpoint = commit.checkpoint.prefix.removeprefix(self._folder) if commit.checkpoint else None
        objects = frozenset(group.object for group in commit.groups)
        return CommitFacts(commit.round, self._set(commit.weights_sha), checkpoint, objects)

    def _set(self, weights_sha: str) -> str:
        return weights_prefix(self._config.run, weights_sha).removeprefix(self._folder)

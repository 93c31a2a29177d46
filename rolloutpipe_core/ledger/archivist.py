"""Keeps Redis bounded in a long run: what is old goes into the archive, then out of Redis.

    stream ──closed range──> upload (if absent) ──> read back ──> trim, under the trainer's epoch, chunk by chunk
                                                                    └─ in the same script: `archived_to`
    rounds that are wholly archived ──> their keys are deleted
    FIFO behind its acknowledged end, old registry entries, names of services that are gone ──> trimmed

A crash between any two steps is harmless: what was uploaded and not trimmed is in both, and is read once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence

from rolloutpipe_core.domain import group_id
from rolloutpipe_core.ledger.archive import Archive, closed_part
from rolloutpipe_core.ledger.events import Entry, place
from rolloutpipe_core.ledger.reader import BEGINNING, LedgerReader
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.store.objects import ObjectStore

log = logging.getLogger("rolloutpipe.trainer")

SETTLED_MS = 5_000
"""Events younger than this stay: a Redis that loses its last seconds must not find them told in the archive already."""
CHUNK = 200
"""Entries or keys that one script takes; Redis serves nobody meanwhile (a few ms)."""


class LedgerArchivist:
    """One trainer incarnation's upkeep of Redis. May run in a thread beside the trainer.

    Every method raises Fenced once another trainer took the role, the errors of LedgerClient and ObjectStore, and
    Damaged when a part that stands in the archive is not what the ledger holds. All may be repeated.
    """

    def __init__(
        self,
        ledger: TrainerLedger,
        reader: LedgerReader,
        store: ObjectStore,
        keep_rounds: int | None,
        archive_events: int,
        settled_ms: int = SETTLED_MS,
    ) -> None:
        """`keep_rounds`: newest published rounds that stay in Redis (None: all). `archive_events`: least size of
        a part. `settled_ms`: younger events stay, for Redis may yet lose them.
        """
        self._ledger = ledger
        self._client = ledger.client
        self._keys = ledger.client.keys
        self._reader = reader
        self._archive = Archive(store, ledger.client.keys.name)
        self._keep_rounds = keep_rounds
        self._archive_events = archive_events
        self._settled_ms = settled_ms
        self._next_look = archive_events  # entries of the stream: with fewer, no part can be long enough

    def reconcile(self) -> None:
        """Before `tend`: tell a Redis that has lost it where the archive ends."""
        newest = max(self._archive.parts(), key=lambda part: place(part.last), default=None)
        archived_to = self._reader.run_state().get("archived_to", BEGINNING)
        if newest is not None and place(newest.last) > place(archived_to):
            *_, (_, fields) = self._archive.entries([newest])
            args = [*self._token, self._archive.store.bucket, newest.last, fields["round"]]
            self._client.call("adopt_archive", [self._keys.run, self._keys.ledger], args)

    def tend(self, newest_published: int) -> None:
        """After a publish: archive and forget what is older than the rounds to keep. `newest_published`: its round."""
        if self._keep_rounds is not None:
            last = newest_published - self._keep_rounds
            while part := self._closed_part(last):
                self._archive_part(part)
            self._forget(last)
        self._tidy()

    @property
    def _token(self) -> tuple[int, str]:
        return self._ledger.epoch.number, self._ledger.epoch.nonce

    def _closed_part(self, last_round: int) -> list[Entry]:
        kept = self._reader.events_kept()
        if kept < self._next_look:
            return []
        before_ms = self._reader.server_time_ms() - self._settled_ms
        part = closed_part(self._reader.stream(), last_round, before_ms, self._archive_events)
        missing = self._archive_events - len(part)
        self._next_look = kept + missing if missing > 0 else 0
        return [] if missing > 0 else part

    def _archive_part(self, part: Sequence[Entry]) -> None:
        self._archive.put(part)
        bucket, round = self._archive.store.bucket, part[-1][1]["round"]
        for start in range(0, len(part), CHUNK):
            chunk = part[start : start + CHUNK]
            args = [*self._token, bucket, chunk[-1][0], len(chunk), entries_sha1(chunk), round]
            self._client.call("trim_ledger", [self._keys.run, self._keys.ledger], args)
        log.info("archived %d events of the ledger, up to round %s", len(part), round)

    def _forget(self, last_round: int) -> None:
        """Delete the keys of archived rounds, oldest first, each round's own keys last."""
        run = self._reader.run_state()
        begin, end = int(run.get("forgotten_round", -1)) + 1, min(last_round, int(run.get("archived_round", -1)))
        for round, groups in zip(range(begin, end + 1), self._reader.sizes(range(begin, end + 1)), strict=True):
            keys = [self._keys.group(group_id(round, index)) for index in range(groups)]
            for start in range(0, max(groups, 1), CHUNK):
                args = [*self._token, round, int(start + CHUNK >= groups)]
                self._client.call("forget", [*self._keys.of_round(round), *keys[start : start + CHUNK]], args)

    def _tidy(self) -> None:
        keys = [self._keys.run, self._keys.ledger, self._keys.fifo, self._keys.weights, self._keys.services]
        kept = "" if self._keep_rounds is None else self._keep_rounds + 1
        self._client.call("tidy", [*keys, *self._reader.service_keys()], [*self._token, kept])


def entries_sha1(entries: Iterable[Entry]) -> str:
    """As `trim_ledger.lua` computes it of what the stream holds."""
    digest = hashlib.sha1(usedforsecurity=False)
    for id, fields in entries:
        for text in (id, *(part for pair in fields.items() for part in pair)):
            data = text.encode()
            digest.update(b"%d:%s" % (len(data), data))
    return digest.hexdigest()

"""A run driven by hand whose history is archived."""

from __future__ import annotations

import redis

from rolloutpipe_core.ledger.archive import Archive
from rolloutpipe_core.ledger.archivist import LedgerArchivist
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.events import Event
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.rollout import RolloutLedger
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.observe.audit import Audit, audit_run
from rolloutpipe_core.preparation import register_run
from rolloutpipe_core.store.commits import CommitChain, Genesis
from rolloutpipe_core.store.objects import ObjectStore

from .conftest import GROUPS, HandRun

START = 3  # events before the first round: the run, version 0, the role
ROUND = 7 * GROUPS + 11  # events of one: seven moves a group, seven of the round and its version, two updates
NO_GRACE_MS = -60_000  # what was told just now may be archived


class Archived:
    """A run driven by hand whose commits stand in the store, and whose archivist keeps one round."""

    def __init__(self, client: redis.Redis, run: str, store: ObjectStore) -> None:
        self.store, self.redis = store, client
        self.chain = CommitChain(store, run)
        genesis = Genesis(run=run, lineage=1, weights_sha="a" * 64, data_fingerprint="data", config_sha="c" * 64)
        head = self.chain.begin(genesis)
        ledger = LedgerClient(client, run, 10)
        register_run(ledger, head, "worker")
        self.opened: list[str] = []
        self.reader = LedgerReader(client, run, open_store=self._open)
        self.hand = HandRun(ledger, self.reader, RolloutLedger(ledger, "worker", 3600, 3), genesis, head)
        self.trainer = self.take_role()
        self.keys = ledger.keys
        self.archive = Archive(store, run)

    def _open(self, bucket: str) -> ObjectStore:
        self.opened.append(bucket)
        return self.store

    def take_role(self) -> TrainerLedger:
        return TrainerLedger.take_role(self.hand.client, "box:7", 1)

    def archivist(self, trainer: TrainerLedger | None = None, least: int = 1) -> LedgerArchivist:
        return LedgerArchivist(trainer or self.trainer, self.reader, self.store, 1, least, NO_GRACE_MS)

    def announce_all(self) -> None:
        self.hand.open()
        for index in range(GROUPS):
            self.hand.announce(self.hand.admit(index))

    def publish_round(self) -> None:
        """All four groups, in two updates."""
        hand, trainer, round = self.hand, self.trainer, self.hand.head.next_round
        self.announce_all()
        for index, announced in enumerate(hand.announced(trainer)):
            trainer.assign(announced.ref, index // 2, index % 2)
            if index % 2:
                trainer.seal(round, index // 2, 2, 4, 20)
                trainer.stepped(round, index // 2, False, False, [(1, 2)], 0, {"loss": 0.5})
        trainer.trained(round, 2)
        commit = hand.commit([[(0, 1), (1, 1)], [(2, 1), (3, 1)]], {}).commit
        hand.head = self.chain.append(commit)
        trainer.publish(hand.head, "weights")

    def publish_rounds(self, count: int) -> list[Event]:
        """Returns the whole history."""
        for _ in range(count):
            self.publish_round()
        return list(self.reader.events())

    def audit(self) -> Audit:
        """Of ledger and commits: these groups and weights never had objects."""
        audit = audit_run(self.reader, self.store, keep_rounds=0)
        audit.findings = [finding for finding in audit.findings if finding.check != "weights-missing"]
        return audit

    def names(self) -> set[str]:
        return {str(key).removeprefix(self.keys.prefix) for key in self.redis.scan_iter(f"{self.keys.prefix}*")}

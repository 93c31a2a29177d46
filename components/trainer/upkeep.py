"""What the trainer's housekeeper does under the trainer's epoch: the ledger's archive, the objects' retention."""

from __future__ import annotations

from functools import partial

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.housekeeper import Housekeeper
from rolloutpipe_core.ledger.archivist import LedgerArchivist
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.retention import Pins, RetentionLedger
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.retention.sweep import Retention
from rolloutpipe_core.store.commits import CommitChain
from rolloutpipe_core.store.objects import ObjectStore


def make_housekeeper(
    config: RunConfig, ledger: TrainerLedger, reader: LedgerReader, store: ObjectStore, chain: CommitChain
) -> Housekeeper:
    """The housekeeper of one trainer incarnation."""
    keep = config.retention
    archivist = LedgerArchivist(ledger, reader, store, keep.keep_rounds, keep.archive_events)
    told = RetentionLedger(ledger.client, ledger.epoch)
    retention = Retention(config, store, chain, told, Pins(ledger.client))

    def tend() -> None:
        archivist.tend(int(reader.run_state()["version"]) - 1)

    works = [archivist.reconcile, tend, retention.apply]
    return Housekeeper(works, partial(told.housekept, keep.keep_rounds))

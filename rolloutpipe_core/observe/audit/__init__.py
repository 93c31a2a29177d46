"""Proof that every group was trained exactly once, from ledger, commits and objects alone.

chain.py     commits: unbroken, consecutive, no group twice
objects.py   what they name: there, unaltered, sampled by the round's version
history.py   the ledger tells the same story, and no version was published without a commit
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rolloutpipe_core.domain import WeightVersion, validate_run_name
from rolloutpipe_core.errors import Damaged, ObjectMissing
from rolloutpipe_core.ledger.events import Event, ObjectsMoved
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.observe.audit.chain import read_chain
from rolloutpipe_core.observe.audit.history import check_history, check_registry
from rolloutpipe_core.observe.audit.model import Audit, Finding, Objects
from rolloutpipe_core.observe.audit.objects import check_groups, check_missing, check_weights, stored_keep_rounds

__all__ = ["Audit", "Finding", "Objects", "audit_history", "audit_run"]


def audit_run(reader: LedgerReader, store: Objects, keep_rounds: int | None = None) -> Audit:
    """Check a run, finished or not, as it stands now. Raises what the ledger or the store raise when they are away.

    `keep_rounds`: the last so many rounds must still have their objects; None: as the run's configuration says, or
    as its last trainer went by, if that is less.
    """
    until_ms = reader.server_time_ms()
    registry = [version for version, _ in reader.versions()]
    if keep_rounds is None:
        told = reader.run_state().get("keep_rounds")
        limits = [stored_keep_rounds(store, reader.keys.name), int(told) if told else None]
        keep_rounds = min((limit for limit in limits if limit is not None), default=None)
    return audit_history(reader.keys.name, store, reader.events(), registry, until_ms, keep_rounds)


def audit_history(
    run: str,
    store: Objects,
    events: Iterable[Event],
    registry: Iterable[WeightVersion],
    until_ms: int,
    keep_rounds: int | None = None,
) -> Audit:
    """Check events before `until_ms` and a registry read by then against the chain, which may be ahead of them.

    Objects may be missing of rounds that the ledger says were retired, and of those older than the last `keep_rounds`
    (None: of no others): what Redis lost may have told of their retirement.
    Memory grows with the commits' groups, not with the events. A missing object is a finding, not an error.
    """
    audit = Audit(validate_run_name(run))
    chain = read_chain(store, run, audit)
    if chain is None:
        return audit
    missing = check_groups(store, chain.rounds, audit)
    missing_weights = check_weights(store, run, chain.versions, audit)
    retired: set[str] = set()
    try:
        check_history(_until(events, until_ms, retired), chain, audit)
    except (Damaged, ObjectMissing) as error:
        audit.report("ledger-archive", f"runs/{run}/ledger/", str(error))
    if f"weights/{chain.versions[-1].sha[:16]}" not in retired:
        audit.findings += missing_weights
    check_missing(missing, len(chain.rounds), keep_rounds, retired, audit)
    check_registry(registry, chain, audit)
    return audit


def _until(events: Iterable[Event], until_ms: int, retired: set[str]) -> Iterator[Event]:
    """Events before `until_ms`; `retired` gets the sets retired by now, as objects go while we read, and not kept."""
    for event in events:
        match event:
            case ObjectsMoved(phase="retired"):
                retired.update(event.sets)
            case ObjectsMoved(phase="kept"):
                retired.difference_update(event.sets)
        if event.at_ms < until_ms:
            yield event

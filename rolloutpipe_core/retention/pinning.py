"""Pinning a version by its number: the commit names its weights, and what is there under a pin stays."""

from __future__ import annotations

from rolloutpipe_core.errors import BadInput, ObjectMissing
from rolloutpipe_core.ledger.retention import Pin, Pins
from rolloutpipe_core.store.commits import CommitChain
from rolloutpipe_core.store.directories import MANIFEST
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.weights import weights_prefix


def pin_version(pins: Pins, store: ObjectStore, run: str, number: int, reason: str, for_s: float) -> Pin:
    """Keep the weights of a version for `for_s` seconds.

    Raises BadInput when no commit makes it, or when its weights are retired or deleted.
    """
    chain = CommitChain(store, run)
    try:
        link = chain.commit(number - 1) if number else chain.genesis()
    except ObjectMissing:
        head = chain.head()
        expected = f"0 to {head.commit.version.number}" if head else "a run that this bucket has"
        raise BadInput(f"run {run} has no such version", given=str(number), expected=expected) from None
    made = pins.pin(link.commit.version, reason, for_s)
    try:
        # Only now: what was there before the pin may have gone meanwhile, what is there under it stays.
        store.head(f"{weights_prefix(run, link.commit.weights_sha)}/{MANIFEST}")
    except ObjectMissing:
        pins.unpin(number, reason)
        raise BadInput(
            f"version {number} can't be pinned",
            given="its weights were deleted",
            remedy="pin a newer version; retention.keep_versions says how many stay",
        ) from None
    return made

"""Proves the one promise that the commits stand on: of several writers of a key exactly one creates it.

SeaweedFS before 4.17 and old MinIO let several win, or ignore the condition. Every service asks at its start.
Only plain PUTs race, since nothing is written conditionally in parts (see `ObjectStore.put_if_absent`).

A SeaweedFS that has only just started changes its way of guarding a key once, and writers that meet in that moment may
all win. So a SeaweedFS that fails is asked again a little later, twelve times as often. Any other store has failed.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from rolloutpipe_core.errors import DeadlineExceeded, StoreRefused
from rolloutpipe_core.store.objects import ObjectStore, PutResult

WRITERS = 3
RACES = 4
SETTLE_S = 5.0
SETS_AGAIN, RACES_AGAIN = 4, 3 * RACES
YOUNG_MAY_FAIL = "SeaweedFS"
START_DEADLINE_S = 10.0

log = logging.getLogger("rolloutpipe")


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What `doctor` shows of a store that passed."""

    endpoint: str
    bucket: str
    server: str  # as it calls itself
    races: int  # each with one winner
    writers: int
    put_ms: float  # of one small object, alone
    clock_offset_s: float  # store's clock minus ours; the store tells whole seconds


def probe_store(store: ObjectStore, settle_s: float = SETTLE_S) -> StoreFacts:
    """Race writers for new keys, read back, clean up. Raises StoreRefused with what went wrong."""
    store.ensure_bucket()
    folder = f"probes/{uuid.uuid4().hex}"
    server, clock_offset_s = _server(store)
    try:
        races = _race_all(store, folder, settle_s if server.startswith(YOUNG_MAY_FAIL) else None)
        started = time.monotonic()
        store.put(f"{folder}/put", b"probe")
        put_ms = (time.monotonic() - started) * 1000
    finally:
        for info in store.list(folder):
            store.delete(info.key)
    return StoreFacts(
        endpoint=store.endpoint,
        bucket=store.bucket,
        server=server,
        races=races,
        writers=WRITERS,
        put_ms=put_ms,
        clock_offset_s=clock_offset_s,
    )


def why_refused(written: Sequence[bytes], results: Sequence[PutResult], stored: bytes) -> str | None:
    """What is wrong with a race's outcome, or None. `stored` is what a reader got afterwards."""
    winners = [data for data, result in zip(written, results, strict=True) if result.ours]
    if len(winners) != 1:
        return f"{len(winners)} of {len(written)} writers created the same key"
    if stored != winners[0]:
        return "a reader got other bytes than the winner wrote"
    if any(result.stored != winners[0] for result in results):
        return "a loser saw other bytes than the winner wrote"
    return None


def _race_all(store: ObjectStore, folder: str, settle_s: float | None) -> int:
    """How many races it took; `settle_s`: after how long a store that failed may try again, None: never."""
    try:
        _race_at_once(store, f"{folder}/first", RACES)
    except StoreRefused as refused:
        if settle_s is None:
            raise
        log.warning("the object store is asked again in %g s: %s", settle_s, refused)
        time.sleep(settle_s)
        for number in range(SETS_AGAIN):
            _race_at_once(store, f"{folder}/again-{number}", RACES_AGAIN)
        return SETS_AGAIN * RACES_AGAIN
    return RACES


def _race_at_once(store: ObjectStore, folder: str, races: int) -> None:
    """Races of one key each, side by side: a contested key costs SeaweedFS about a second."""
    with ThreadPoolExecutor(races) as pool:
        list(pool.map(lambda number: _race(store, f"{folder}-{number}"), range(races)))


def _race(store: ObjectStore, key: str) -> None:
    written = [f"writer {number} of {key}".encode() for number in range(WRITERS)]
    start = threading.Barrier(WRITERS)

    def write(data: bytes) -> PutResult:
        start.wait(START_DEADLINE_S)
        return store.put_if_absent(key, data)

    with ThreadPoolExecutor(WRITERS) as pool:
        try:
            results = list(pool.map(write, written))
        except threading.BrokenBarrierError as error:
            raise DeadlineExceeded("the probe's writers did not start", expected=f"{START_DEADLINE_S:g} s") from error
    reason = why_refused(written, results, store.get(key))
    if reason is not None:
        raise StoreRefused(
            "the object store does not keep the promise of If-None-Match: *",
            given=reason,
            expected="exactly one winner",
            remedy="update it (SeaweedFS 4.17 or newer, a recent MinIO), or take another",
        )


def _server(store: ObjectStore) -> tuple[str, float]:
    """The server's name and its clock's offset, from the headers of an answer."""
    headers = store.answer_headers()
    offset = parsedate_to_datetime(headers["date"]) - datetime.now(UTC)
    return headers.get("server", "unknown"), offset.total_seconds()

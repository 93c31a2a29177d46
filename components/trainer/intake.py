"""The trainer's end of the FIFO: reads ahead of training, fetches and verifies in the background.

    FIFO ──thread: read, fetch, hash, decode──> arrivals ──trainer's own thread: gate──> ready, or rejected

Only reading and fetching run in threads of their own, so that they hide behind compute; every verdict and every
transition is made by the caller of `collect`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from rolloutpipe_core.domain import Group, GroupRef, GroupState, WeightVersion
from rolloutpipe_core.errors import Damaged, ObjectMissing
from rolloutpipe_core.gate import Expectation, why_altered, why_rejected
from rolloutpipe_core.ledger.trainer import Announced, Drained, TrainerLedger
from rolloutpipe_core.store.groups import decode_group
from rolloutpipe_core.store.objects import ObjectStore

log = logging.getLogger("rolloutpipe.trainer")

POLL_MS = 200
FETCHERS = 2


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """What the gate holds a round's groups to."""

    run: str
    lineage: int
    round: int
    version: WeightVersion
    samples_per_group: int
    vocabulary: int | None

    def expectation(self, attempt: int) -> Expectation:
        size = self.samples_per_group
        return Expectation(self.run, self.lineage, self.version, size, attempt, self.vocabulary)


@dataclass(frozen=True, slots=True)
class Ready:
    """A group that passed the gate, with the announcement it came under."""

    ref: GroupRef
    group: Group


def fetch_group(store: ObjectStore, ref: GroupRef) -> Group:
    """The announced group. Raises Damaged on proven damage, StoreUnavailable when an outage outlives its deadline."""
    try:
        data = store.get(ref.object)
    except ObjectMissing:
        raise Damaged(f"missing object: {ref.object}") from None
    reason = why_altered(data, ref)
    if reason is not None:
        raise Damaged(reason)
    return decode_group(data)


class Intake:
    """One incarnation's reading of the FIFO. A context manager: its threads end with it."""

    def __init__(self, ledger: TrainerLedger, store: ObjectStore, max_rejections: int) -> None:
        self._ledger = ledger
        self._store = store
        self._max_rejections = max_rejections
        self._arrivals: list[tuple[Announced, Future[Group]]] = []
        self._markers: list[Drained] = []
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(FETCHERS, thread_name_prefix="fetch")
        self._thread = threading.Thread(target=self._run, name="fifo", daemon=True)
        self._news = False  # something was read or fetched since the last `collect`

    def __enter__(self) -> Intake:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=5)  # before the pool: it submits to it
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def arriving(self) -> int:
        """Announced groups that are still being fetched or verified."""
        with self._changed:
            return len(self._arrivals)

    def drained_generation(self, round: int) -> int:
        """The newest generation of the round whose drain marker was read; 0 = none."""
        with self._changed:
            return max((marker.generation for marker in self._markers if marker.round == round), default=0)

    def wait(self, timeout_s: float) -> bool:
        """Whether something was read or fetched since the last `collect`; waits for it until the time-out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._news, timeout_s)

    def collect(self, facts: RoundFacts) -> Iterator[Ready | int]:
        """Judge what was fetched, in FIFO order: ready groups, or the round's generation after a rejection.

        Raises what ended the reading thread, and StoreUnavailable when a fetch outlived its deadline.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            self._news = False
            done = [pair for pair in self._arrivals if pair[1].done()]
            self._arrivals = [pair for pair in self._arrivals if not pair[1].done()]
        for announced, future in done:
            verdict = self._judge(announced, future, facts)
            if verdict is not None:
                yield verdict

    def acknowledge_markers(self, round: int) -> None:
        """Put the markers of a published round behind us."""
        with self._changed:
            behind = [marker for marker in self._markers if marker.round <= round]
            self._markers = [marker for marker in self._markers if marker.round > round]
        for marker in behind:
            self._ledger.acknowledge(marker.entry)

    def _judge(self, announced: Announced, future: Future[Group], facts: RoundFacts) -> Ready | int | None:
        ref, current = announced.ref, self._ledger.current(announced.ref.group)
        ours = current.attempt == ref.attempt and current.entry == announced.entry
        if ours and current.state == GroupState.CLAIMED:
            return None  # assigned before a restart: it is replayed from the recorded assignments
        try:
            group = future.result()
            reason = self._why_not(announced, group, facts, current.attempt, ours)
        except Damaged as error:
            reason = str(error)
        if reason is None:
            return Ready(ref, group)
        outcome, generation = self._ledger.reject(announced, reason, self._max_rejections)
        log.warning("%s: announcement of attempt %d %s: %s", ref.group, ref.attempt, outcome, reason)
        return generation

    def _why_not(self, announced: Announced, group: Group, facts: RoundFacts, attempt: int, ours: bool) -> str | None:
        reason = why_rejected(group, announced.ref, facts.expectation(attempt))
        if reason is None and not ours:
            return f"duplicate announcement: entry {announced.entry} is not the group's current one"
        return reason

    def _run(self) -> None:
        after = "0-0"
        try:
            while not self._stopped.is_set():
                entries = self._ledger.read(after)
                if not entries:
                    self._ledger.wait_for_entries(after, POLL_MS)
                for entry in entries:
                    after = entry.entry
                    self._take(entry)
        except Exception as error:  # whatever ends the thread must end the trainer's wait, too
            self._fail(error)

    def _take(self, entry: object) -> None:
        with self._changed:
            if isinstance(entry, Announced):
                future = self._pool.submit(fetch_group, self._store, entry.ref)
                self._arrivals.append((entry, future))
                future.add_done_callback(lambda _: self._tell())
            elif isinstance(entry, Drained):
                self._markers.append(entry)
            else:
                log.warning("foreign entry in the FIFO is left alone: %s", entry)
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._tell()

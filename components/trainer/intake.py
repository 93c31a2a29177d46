"""The trainer's end of the FIFO: reads ahead of training, fetches and verifies in the background.

    FIFO ──thread: read──> line ──threads: fetch, hash, decode, gate──> verdicts ──trainer's own thread──> ready
                                                                                └── against it ──> rejected

Everything that takes time runs in threads of their own, so that it hides behind compute; every transition is made by
the caller of `collect`. No more than the first groups of the line are in memory (readahead.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from rolloutpipe_core.domain import Group, GroupRef, GroupState, WeightVersion
from rolloutpipe_core.errors import Damaged
from rolloutpipe_core.gate import Expectation
from rolloutpipe_core.ledger.trainer import Announced, Drained, TrainerLedger

from .readahead import Arrival, ReadAhead, Ready, Verdict

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
class Gathered:
    """What the trainer knows of its round's groups at one instant."""

    ready: tuple[Ready, ...]  # in order of completion
    arriving: tuple[GroupRef, ...]  # announced, neither ready nor taken
    drained: int  # the newest generation whose drain marker was read; 0 = none
    generation: int  # the newest generation that a rejection told of; 0 = none


ReadGroup = Callable[[GroupRef, Expectation], Group]
"""Fetches and verifies: `Ranks.read` (rank.py)."""


class Intake:
    """One incarnation's reading of the FIFO. A context manager: its threads end with it."""

    def __init__(self, ledger: TrainerLedger, read: ReadGroup, max_rejections: int, ahead: int, by_index: bool) -> None:
        """`ahead`: most groups in memory, at least an update's; `by_index`: updates take them in submission order."""
        self._ledger = ledger
        self._read_group = read
        self._max_rejections = max_rejections
        self._line = ReadAhead(ahead, by_index)
        self._markers: list[Drained] = []
        self._facts: RoundFacts | None = None
        self._generation = 0
        self._error: Exception | None = None
        # One lock; each kind of thread has its own condition, so that nobody is woken for nothing.
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)  # for the trainer
        self._work = threading.Condition(self._lock)  # for the fetching threads
        self._hunger = threading.Condition(self._lock)  # for the reading thread
        self._is_news = False  # something was read or verified since the last `collect`
        self._stopped = threading.Event()
        self._reader = threading.Thread(target=self._read, name="fifo", daemon=True)
        self._fetchers = [
            threading.Thread(target=self._fetch, name=f"fetch-{number}", daemon=True) for number in range(FETCHERS)
        ]

    def __enter__(self) -> Intake:
        for thread in (self._reader, *self._fetchers):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        with self._lock:
            self._work.notify_all()
            self._hunger.notify_all()
        self._reader.join(timeout=5)  # a fetcher may be waiting for a store that is away

    def begin_round(self, facts: RoundFacts) -> None:
        """From now on groups are held to these facts; until then, none of this round is fetched."""
        with self._lock:
            self._facts, self._generation = facts, 0
            self._markers = [marker for marker in self._markers if marker.round >= facts.round]
            self._work.notify_all()
            self._hunger.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Whether something was read or verified since the last `collect`; waits for it until the time-out."""
        with self._lock:
            return self._news.wait_for(lambda: self._is_news, timeout_s)

    def collect(self) -> Gathered:
        """Settle what did not pass, and tell what is there.

        Raises what ended the reading thread, and StoreUnavailable when a fetch outlived its deadline.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            self._is_news = False
            settled = [(arrival, arrival.verdict) for arrival in self._line if arrival.verdict and not arrival.is_ready]
            if not settled:
                return self._gathered()
        for arrival, verdict in settled:
            if verdict.error is not None:
                raise verdict.error
            if verdict.reason is not None:
                self._reject(arrival.announced, verdict.reason)
        with self._lock:
            self._remove({arrival for arrival, _ in settled})
            return self._gathered()

    def take(self, taken: Sequence[Ready]) -> None:
        """Forget groups that go into an update: their places are free for the next ones."""
        refs = {id(ready.ref) for ready in taken}  # not by value: a duplicate announcement is still to be rejected
        with self._lock:
            self._remove({arrival for arrival in self._line if id(arrival.announced.ref) in refs})

    def _gathered(self) -> Gathered:
        assert self._facts is not None, "begin_round comes first"
        round = self._facts.round
        held = sorted((arrival for arrival in self._line.held() if arrival.is_ready), key=lambda a: a.finished)
        return Gathered(
            ready=tuple(arrival.verdict.ready for arrival in held if arrival.verdict and arrival.verdict.ready),
            arriving=tuple(
                arrival.announced.ref
                for arrival in self._line
                if not arrival.is_ready and arrival.announced.ref.round <= round
            ),
            drained=max((marker.generation for marker in self._markers if marker.round == round), default=0),
            generation=self._generation,
        )

    def _reject(self, announced: Announced, reason: str) -> None:
        ref = announced.ref
        outcome, generation = self._ledger.reject(announced, reason, self._max_rejections)
        self._generation = max(self._generation, generation)
        log.warning("%s: announcement of attempt %d %s: %s", ref.group, ref.attempt, outcome, reason)

    def _remove(self, gone: set[Arrival]) -> None:
        """The places that this frees may bring work. To be called under the lock."""
        self._line.remove(gone)
        self._work.notify_all()

    def _fetch(self) -> None:
        """A fetching thread: always the first in the line that nobody has begun."""
        while (next_one := self._next()) is not None:
            arrival, facts = next_one
            try:
                verdict = self._verify(arrival.announced, facts)
            except Exception as error:  # raised again by `collect`, in the trainer's own thread
                verdict = Verdict(error=error)
            with self._lock:
                self._line.finish(arrival, verdict)
                self._tell()

    def _next(self) -> tuple[Arrival, RoundFacts] | None:
        """What to fetch; waits for it. None once the intake has ended."""
        with self._lock:
            while not self._stopped.is_set():
                if self._facts is not None and (arrival := self._line.begin_next(self._facts.round)) is not None:
                    if not self._have_work():
                        self._hunger.notify()
                    return arrival, self._facts
                self._work.wait()
            return None

    def _verify(self, announced: Announced, facts: RoundFacts) -> Verdict:
        ref, current = announced.ref, self._ledger.current(announced.ref.group)
        ours = current.attempt == ref.attempt and current.entry == announced.entry
        if ours and current.state == GroupState.CLAIMED:
            return Verdict()
        try:
            group = self._read_group(ref, facts.expectation(current.attempt))
        except Damaged as error:
            return Verdict(reason=str(error))
        if not ours:
            return Verdict(reason=f"duplicate announcement: entry {announced.entry} is not the group's current one")
        return Verdict(ready=Ready(ref, group))

    def _read(self) -> None:
        """The reading thread."""
        after = "0-0"
        try:
            while not self._stopped.is_set():
                if entries := self._ledger.read(after):
                    after = entries[-1].entry
                    self._enter(entries)
                    self._wait_for_fetchers()
                else:
                    self._ledger.wait_for_entries(after, POLL_MS)
        except Exception as error:  # whatever ends the thread must end the trainer's wait, too
            with self._lock:
                self._error = error
                self._tell()

    def _enter(self, entries: Sequence[object]) -> None:
        with self._lock:
            for entry in entries:
                if isinstance(entry, Announced):
                    self._line.add(entry)
                elif isinstance(entry, Drained):
                    self._markers.append(entry)
                else:
                    log.warning("an entry of the FIFO is not ours, and is passed over: %s", entry)
            self._work.notify_all()
            self._tell()

    def _wait_for_fetchers(self) -> None:
        """Return when they are about to run out of work: entries are cheaper to read when several have come."""
        with self._lock:
            self._hunger.wait_for(lambda: self._stopped.is_set() or not self._have_work(), POLL_MS / 1000)

    def _have_work(self) -> bool:
        if self._facts is None:
            return False
        return len(list(islice(self._line.waiting(self._facts.round), FETCHERS))) == FETCHERS

    def _tell(self) -> None:
        """To be called under the lock."""
        self._is_news = True
        self._news.notify_all()

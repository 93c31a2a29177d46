"""Which announced groups are in memory: the first `ahead` of the line in which training takes them.

A late head of the line pushes the last of those first out of memory again, to be fetched when its turn comes: so the
bound holds in whatever order groups arrive, and the head of the line never waits for room.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count, islice

from rolloutpipe_core.domain import Group, GroupRef
from rolloutpipe_core.ledger.trainer import Announced


@dataclass(frozen=True, slots=True)
class Ready:
    """A group that passed the gate, with the announcement it came under."""

    ref: GroupRef
    group: Group


@dataclass(frozen=True, slots=True)
class Verdict:
    """What fetching and verifying came to. All None: the group was assigned before a restart, and is replayed."""

    ready: Ready | None = None
    reason: str | None = None  # against training it
    error: Exception | None = None  # it could not be fetched


@dataclass(slots=True, eq=False)
class Arrival:
    """An announced group that was not taken yet."""

    announced: Announced
    place: tuple[int, ...]  # in the line
    begun: bool = False  # it is being fetched, or was
    verdict: Verdict | None = None
    finished: int = 0  # the how manieth verdict it is

    @property
    def is_ready(self) -> bool:
        return self.verdict is not None and self.verdict.ready is not None


class ReadAhead:
    """The line of announced groups. Not thread-safe: its owner locks."""

    def __init__(self, ahead: int, by_index: bool) -> None:
        """`by_index`: training takes groups in submission order, otherwise as they were announced."""
        self._ahead = ahead
        self._by_index = by_index
        self._numbers = count()
        self._line: list[Arrival] = []

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._line)

    def add(self, announced: Announced) -> None:
        ref, number = announced.ref, next(self._numbers)
        place = (ref.round, ref.index, number) if self._by_index else (number,)
        insort(self._line, Arrival(announced, place), key=lambda arrival: arrival.place)
        if len(self._line) > self._ahead:
            pushed_out = self._line[self._ahead]
            pushed_out.begun, pushed_out.verdict = False, None

    def remove(self, gone: Collection[Arrival]) -> None:
        self._line = [arrival for arrival in self._line if arrival not in gone]

    def held(self) -> list[Arrival]:
        """Those that are in memory, or may be."""
        return list(islice(self._line, self._ahead))

    def waiting(self, last_round: int) -> Iterator[Arrival]:
        """Those that are to be fetched now, first of the line first; those of later rounds wait."""
        for arrival in islice(self._line, self._ahead):
            if not arrival.begun and arrival.announced.ref.round <= last_round:
                yield arrival

    def begin_next(self, last_round: int) -> Arrival | None:
        """The first that is to be fetched now, marked as begun."""
        arrival = next(self.waiting(last_round), None)
        if arrival is not None:
            arrival.begun = True
        return arrival

    def finish(self, arrival: Arrival, verdict: Verdict) -> None:
        """Keep what came out, unless the group was pushed out meanwhile."""
        if arrival.begun:
            arrival.verdict, arrival.finished = verdict, next(self._numbers)

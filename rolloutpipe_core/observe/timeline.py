"""When everything of a round happened, folded from ledger events. Pure: no Redis, no clock.

    events ──Timelines.add──> RoundTimeline ──> measures.py (numbers), figures/ (pictures), why.py (words)

All times are the server's, in ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise

from rolloutpipe_core.domain import ENDED_STATES, GroupState, RoundState, parse_group_id
from rolloutpipe_core.ledger.events import (
    Event,
    GroupMoved,
    RoundMoved,
    RunMoved,
    UpdateSealed,
    UpdateStepped,
    VersionPublished,
)

Interval = tuple[int, int]  # start <= end, ms
FINAL_STATES = (GroupState.TRAINED, *ENDED_STATES)


@dataclass(frozen=True, slots=True)
class Move:
    """A group entered `state` at `at_ms` and stays there until its next move."""

    state: GroupState
    at_ms: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stay:
    """A group was in `state` from `start` to `end`."""

    state: GroupState
    start: int
    end: int
    attempt: int


@dataclass(slots=True)
class GroupTimeline:
    """One group's moves, and what its newest announcement said."""

    id: str
    index: int  # submission order
    moves: list[Move] = field(default_factory=list)
    reward_mean: float | None = None  # None: never scored, or what was scored turned out damaged
    reward_std: float | None = None
    samples: int = 0
    tokens: int = 0  # prompt and response tokens of all samples
    response_tokens: int = 0
    longest_response: int = 0
    update: int | None = None
    update_index: int | None = None

    @property
    def state(self) -> GroupState:
        return self.moves[-1].state

    @property
    def attempts(self) -> int:
        return max(move.attempt for move in self.moves)

    def first(self, state: GroupState) -> int | None:
        """When the group first entered the state."""
        return next((move.at_ms for move in self.moves if move.state is state), None)


@dataclass(slots=True)
class UpdateTimeline:
    """One update. A replay after a restart overwrites what the first try left: only the last step counts."""

    update: int
    groups: int = 0
    samples: int = 0
    tokens: int = 0
    sealed_ms: int | None = None
    stepped_ms: int | None = None
    skipped: bool = False
    replay: bool = False
    busy: tuple[Interval, ...] = ()
    blocked_ms: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class RoundTimeline:
    round: int
    state: RoundState = RoundState.OPEN
    version: int | None = None  # the version that samples this round
    weights_sha: str = ""
    schedule: str = ""
    samples_per_group: int = 0
    groups_per_update: int = 0
    opened_ms: int | None = None
    rollout_start_ms: int | None = None  # first admission of a group
    drained_ms: int | None = None  # the last drain: a rejection may have reopened the round
    trained_ms: int | None = None  # the last one: a trainer may have died after the first
    committed_ms: int | None = None
    published_ms: int | None = None
    groups: dict[int, GroupTimeline] = field(default_factory=dict)  # by index
    updates: dict[int, UpdateTimeline] = field(default_factory=dict)

    def busy(self) -> list[Interval]:
        """The trainer's compute that counts, merged, between the rollout's start and the end of training."""
        if self.rollout_start_ms is None:
            return []
        intervals = merge(chain.from_iterable(update.busy for update in self.updates.values()))
        return clip(intervals, self.rollout_start_ms, self.trained_ms)

    def first_claim_ms(self) -> int | None:
        claims = (group.first(GroupState.CLAIMED) for group in self.groups.values())
        return min((claim for claim in claims if claim is not None), default=None)

    def end_ms(self) -> int | None:
        """Latest instant known of this round: where its picture ends."""
        moves = (group.moves[-1].at_ms for group in self.groups.values() if group.moves)
        steps = (update.stepped_ms for update in self.updates.values() if update.stepped_ms is not None)
        marks = (self.opened_ms, self.rollout_start_ms, self.drained_ms, self.trained_ms, self.published_ms)
        return max(chain(moves, steps, (mark for mark in marks if mark is not None)), default=None)

    def stays(self, group: GroupTimeline, until_ms: int) -> Iterator[Stay]:
        """The states of a group as intervals; the present one lasts until `until_ms`, final ones have no length.

        A claimed group's stay ends with the step of its update, though it is `trained` only after the commit.
        """
        for move, after in pairwise(group.moves):
            yield Stay(move.state, move.at_ms, self._stepped(group, move, after.at_ms), move.attempt)
        last = group.moves[-1]
        end = last.at_ms if last.state in FINAL_STATES else self._stepped(group, last, max(until_ms, last.at_ms))
        yield Stay(last.state, last.at_ms, end, last.attempt)

    def _stepped(self, group: GroupTimeline, move: Move, left_ms: int) -> int:
        if move.state is not GroupState.CLAIMED or group.update not in self.updates:
            return left_ms
        stepped = self.updates[group.update].stepped_ms
        return min(stepped, left_ms) if stepped is not None and stepped >= move.at_ms else left_ms


class Timelines:
    """Folds events, in the ledger's order, one at a time: a live display may go on adding."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.versions: dict[int, VersionPublished] = {}  # by number; a restored registry repeats its head
        self.stop_reason = ""  # why the run was stopped for good; "" = it was not
        self._rounds: dict[int, RoundTimeline] = {}
        for event in events:
            self.add(event)

    def rounds(self) -> list[RoundTimeline]:
        """All rounds seen so far, in order."""
        return [self._rounds[number] for number in sorted(self._rounds)]

    def round(self, number: int) -> RoundTimeline | None:
        return self._rounds.get(number)

    def add(self, event: Event) -> None:
        match event:
            case RoundMoved():
                self._round_moved(event)
            case GroupMoved():
                _group_moved(self._at(event.round), event)
            case UpdateSealed():
                update = _update(self._at(event.round), event.update)
                update.sealed_ms = event.at_ms
                update.groups, update.samples, update.tokens = event.groups, event.samples, event.tokens
            case UpdateStepped():
                update = _update(self._at(event.round), event.update)
                update.stepped_ms = event.at_ms
                update.skipped, update.replay = event.skipped, event.replay
                update.busy, update.blocked_ms, update.metrics = event.busy_ms, event.blocked_ms, event.metrics
            case VersionPublished():
                self.versions[event.version.number] = event
            case RunMoved():
                self.stop_reason = event.reason if event.after == "stopped" else ""

    def _at(self, number: int) -> RoundTimeline:
        return self._rounds.setdefault(number, RoundTimeline(number))

    def _round_moved(self, event: RoundMoved) -> None:
        if event.after is RoundState.OPEN:
            # Opened a second time only when Redis lost the first: nothing of it will be trained.
            self._rounds[event.round] = _opened(event)
            return
        line = self._at(event.round)
        line.state = event.after
        match event.after:
            case RoundState.GENERATING:
                if line.rollout_start_ms is None:
                    line.rollout_start_ms = event.at_ms
            case RoundState.DRAINED:
                line.drained_ms = event.at_ms
            case RoundState.TRAINED:
                line.trained_ms = event.at_ms
            case RoundState.COMMITTED:
                line.committed_ms = event.at_ms
            case RoundState.PUBLISHED:
                line.published_ms = event.at_ms


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, in order: `merge([(5, 9), (0, 2), (1, 3)]) == [(0, 3), (5, 9)]`."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def clip(intervals: Iterable[Interval], start: int, end: int | None) -> list[Interval]:
    """What lies between `start` and `end` (None: no end)."""
    clipped = ((max(a, start), b if end is None else min(b, end)) for a, b in intervals)
    return [(a, b) for a, b in clipped if a < b]


def _opened(event: RoundMoved) -> RoundTimeline:
    details = event.details
    return RoundTimeline(
        event.round,
        version=int(details["version"]),
        weights_sha=details["version_sha"],
        schedule=details["schedule"],
        samples_per_group=int(details["samples_per_group"]),
        groups_per_update=int(details["groups_per_update"]),
        opened_ms=event.at_ms,
    )


def _update(line: RoundTimeline, number: int) -> UpdateTimeline:
    return line.updates.setdefault(number, UpdateTimeline(number))


def _group_moved(line: RoundTimeline, event: GroupMoved) -> None:
    index = parse_group_id(event.group)[1]
    group = line.groups.setdefault(index, GroupTimeline(event.group, index))
    group.moves.append(Move(event.after, event.at_ms, event.attempt, event.reason))
    details = event.details
    match event.after:
        case GroupState.DEFERRED | GroupState.REJECTED:
            _forget_scores(group)
        case GroupState.QUEUED if event.before is GroupState.CLAIMED:
            # All assignments of the round were taken back: its updates begin anew.
            line.updates.pop(group.update if group.update is not None else -1, None)
            group.update = group.update_index = None
        case GroupState.QUEUED:
            group.samples, group.tokens = int(details["samples"]), int(details["tokens"])
            group.longest_response = int(details["longest_response"])
            _keep_scores(group, details)
        case GroupState.FILTERED if "reward_mean" in details:  # not when a commit told Redis of it
            group.samples = line.samples_per_group
            _keep_scores(group, details)
        case GroupState.CLAIMED:
            group.update, group.update_index = int(details["update"]), int(details["update_index"])


def _keep_scores(group: GroupTimeline, details: Mapping[str, str]) -> None:
    group.reward_mean, group.reward_std = float(details["reward_mean"]), float(details["reward_std"])
    group.response_tokens = int(details["response_tokens"])


def _forget_scores(group: GroupTimeline) -> None:
    """What a lost or damaged attempt brought is not trained, so it counts nowhere."""
    group.reward_mean = group.reward_std = None
    group.samples = group.tokens = group.response_tokens = group.longest_response = 0
    group.update = group.update_index = None

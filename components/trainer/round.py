"""One round of training: groups become updates as they arrive; the loop is the paper's CGP (and the other schedules).

    recorded assignments (after a restart) ──┐
                                             ├──> assign ──> accumulate … ──> seal ──> step ──┐
    ready groups from the intake ────────────┘         ^                                      │
                                                       └────────── next update ───────────────┘

It waits for ready groups only (deadline group_s, counted from the last sign of life of rollout).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import ENDED_STATES, GroupRef, GroupState, group_id
from rolloutpipe_core.errors import Damaged, LedgerRefused
from rolloutpipe_core.ledger.beacon import Beacon
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.records import parse_reference
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.schedule import Action, Finish, Step, Take, TrainerView, Wait, next_action

from .intake import Intake, ReadGroup, RoundFacts
from .readahead import Ready
from .stopwatch import Stopwatch
from .trainer import Trainer

log = logging.getLogger("rolloutpipe.trainer")

POLL_S = 0.2
BEHIND = {GroupState.CLAIMED, GroupState.TRAINED, *ENDED_STATES}
"""States of groups that no update waits for."""


@dataclass(frozen=True, slots=True)
class TrainedUpdate:
    """An update as it was stepped."""

    index: int
    members: tuple[GroupRef, ...]
    metrics: dict[str, float]


@dataclass(slots=True)
class Recorded:
    """What the ledger already holds of this round: assignments by update, and how many updates are sealed."""

    members: dict[int, list[GroupRef]] = field(default_factory=dict)
    sealed: int = 0

    @classmethod
    def of(cls, reader: LedgerReader, round: int) -> Recorded:
        recorded = cls(sealed=int(reader.round_state(round).get("updates_sealed", 0)))
        claimed = [row for row in reader.groups(round) if row["state"] == GroupState.CLAIMED]
        for row in sorted(claimed, key=lambda row: (int(row["update"]), int(row["update_index"]))):
            recorded.members.setdefault(int(row["update"]), []).append(parse_reference(row))
        return recorded


class RoundTraining:
    """Trains one round, from its first group to its last step. Used once."""

    def __init__(
        self,
        config: RunConfig,
        facts: RoundFacts,
        trainer: Trainer,
        ledger: TrainerLedger,
        reader: LedgerReader,
        read: ReadGroup,
        intake: Intake,
        beacon: Beacon,
        stopwatch: Stopwatch,
    ) -> None:
        self.config = config
        self.facts = facts
        self.trainer = trainer
        self.ledger = ledger
        self.reader = reader
        self.read = read
        self.intake = intake
        self.beacon = beacon
        self.stopwatch = stopwatch
        self._ready: dict[int, Ready] = {}  # as of the last look
        self._behind: set[int] = set()  # submission orders known to be consumed or ended
        self._generation = int(reader.round_state(facts.round).get("generation", 1))

    def run(self) -> list[TrainedUpdate]:
        """All updates of the round, in order.

        Raises DeadlineExceeded when groups stop coming, Fenced or LedgerRefused when the ledger moved on without us,
        Damaged when a recorded assignment can't be replayed (its assignments are then taken back).
        """
        self.intake.begin_round(self.facts)
        recorded = Recorded.of(self.reader, self.facts.round)
        self.trainer.begin_round()
        updates: list[TrainedUpdate] = []
        while (update := self._update(len(updates), recorded)) is not None:
            updates.append(update)
        return updates

    def _update(self, index: int, recorded: Recorded) -> TrainedUpdate | None:
        """One update; None when the round has no more groups."""
        self.beacon.doing(f"training round {self.facts.round}, update {index}")
        self.stopwatch.reset()
        self.trainer.begin_update(index)
        members = self._replay(recorded.members.get(index, []))
        if index < recorded.sealed:
            return self._step(index, members, replay=True)
        while True:
            view = self._view(len(members))
            match self._next(view):
                case Take(indices):
                    members += self._take(index, len(members), [self._ready[place] for place in indices])
                case Step():
                    return self._step(index, members, replay=False)
                case Wait(reason):
                    held_up = not isinstance(self._next(view.all_ready()), Wait)
                    self._wait(f"round {self.facts.round}: {reason}", len(members), held_up)
                case Finish():
                    return None

    def _next(self, view: TrainerView) -> Action:
        return next_action(view, self.config.schedule)

    def _view(self, accumulated: int) -> TrainerView:
        gathered = self.intake.collect()
        self._generation = max(self._generation, gathered.generation)
        self._ready = {ready.ref.index: ready for ready in gathered.ready}
        announced = {*self._ready, *(ref.index for ref in gathered.arriving)}
        return TrainerView(
            ready=tuple(self._ready),
            accumulated=accumulated,
            drained=gathered.drained >= self._generation,
            arriving=tuple(ref.index for ref in gathered.arriving),
            outstanding=self._outstanding(announced) if self.config.schedule.order == "submission" else frozenset(),
        )

    def _outstanding(self, announced: AbstractSet[int]) -> frozenset[int]:
        """Submission orders that will still be trained, or may be. Redis is asked only of those not announced."""
        # Anew at each look: under `refill` a round grows, at the end of the line.
        size = int(self.reader.round_state(self.facts.round).get("groups", 0))
        asked = [index for index in range(size) if index not in announced and index not in self._behind]
        states = self.reader.group_states([group_id(self.facts.round, index) for index in asked])
        self._behind |= {index for index, state in zip(asked, states, strict=True) if state in BEHIND}
        return frozenset(range(size)) - self._behind

    def _take(self, update: int, place: int, taken: Sequence[Ready]) -> list[GroupRef]:
        for offset, ready in enumerate(taken):
            self.ledger.assign(ready.ref, update, place + offset)
        self.intake.take(taken)
        self._behind |= {ready.ref.index for ready in taken}
        with self.stopwatch.busy():
            self.trainer.accumulate([ready.group for ready in taken])
        return [ready.ref for ready in taken]

    def _replay(self, refs: Sequence[GroupRef]) -> list[GroupRef]:
        """Accumulate what was assigned to this update before a restart, in the recorded order.

        At once, as it was where an update's groups are awaited: then micro-batches and bits are the same again.
        """
        groups = []
        for ref in refs:
            try:
                groups.append(self.read(ref, self.facts.expectation(ref.attempt)))
            except Damaged as error:
                raise self._unassigned(f"recorded assignment of {ref.group} can't be replayed: {error}") from error
        if groups:
            with self.stopwatch.busy():
                self.trainer.accumulate(groups)
        return list(refs)

    def _unassigned(self, reason: str) -> Damaged:
        """Take the round's assignments back; returns the error that says so."""
        claimed = [row["id"] for row in self.reader.groups(self.facts.round) if row["state"] == GroupState.CLAIMED]
        self.ledger.unassign(self.facts.round, claimed, reason)
        return Damaged(reason)

    def _step(self, index: int, members: Sequence[GroupRef], replay: bool) -> TrainedUpdate:
        samples, tokens = sum(ref.samples for ref in members), sum(ref.tokens for ref in members)
        self.ledger.seal(self.facts.round, index, len(members), samples, tokens)
        with self.stopwatch.busy():
            result = self.trainer.step()
        if result.skipped:
            log.warning("round %d, update %d: gradient not finite, step skipped", self.facts.round, index)
        watch = self.stopwatch
        self.ledger.stepped(
            self.facts.round, index, result.skipped, replay, watch.busy_ms, watch.blocked_ms, result.metrics
        )
        return TrainedUpdate(index, tuple(members), dict(result.metrics))

    def _wait(self, what: str, accumulated: int, held_up: bool) -> None:
        """Wait until the next action may differ; past group_s without a sign of life from rollout, give up.

        `held_up`: only fetching and verifying keep the trainer from going on.
        """
        with self.beacon.waiting(what, self.config.deadlines.group_s) as wait:
            while True:
                with self.stopwatch.blocked(counts=held_up):
                    arrived = self.intake.wait(POLL_S)
                if arrived or self._may_act(accumulated):
                    return
                if self.beacon.fenced is not None:
                    raise self.beacon.fenced
                self._check_version()
                wait.check(self._rollout_seen())

    def _check_version(self) -> None:
        """A Redis that lost its last second may have forgotten the version that rollout should sample with."""
        found = self.reader.run_state().get("version", "none")
        if found != str(self.facts.version.number):
            raise LedgerRefused(
                f"Redis went back in time while round {self.facts.round} was trained",
                given=f"version {found}",
                expected=f"version {self.facts.version.number}",
            )

    def _may_act(self, accumulated: int) -> bool:
        """Only `submission` order can move on without a FIFO entry: the head of the line has ended."""
        if self.config.schedule.order != "submission":
            return False
        return not isinstance(self._next(self._view(accumulated)), Wait)

    def _rollout_seen(self) -> str:
        round = self.reader.round_state(self.facts.round)
        counts = {state: int(round.get(f"n_{state}", 0)) for state in GroupState}
        told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        workers = [row["name"] for row in self.reader.services() if row.get("role") == "rollout"]
        alive = f"rollout workers alive: {', '.join(workers)}" if workers else "no rollout worker is alive"
        return f"{alive}; groups: {told or 'none opened'}"

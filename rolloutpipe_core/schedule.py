"""Who is admitted next, and what the trainer does next: pure functions over small states.

Rollout (paper, Eq. 5 and 6): O = groups that arrived and are not serving-complete; the frontier is the F_w groups of
lowest submission order in O; a group is admitted iff it is in the frontier, else deferred. `fill` also uses slots that
would idle. Trainer: an update starts when U groups are ready (CGP), when the round is drained (serial), or with what is
there (stream); the optimizer steps once an update.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import takewhile

from rolloutpipe_core.config.models import ScheduleConfig


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """How a rollout worker admits groups."""

    width: int | None  # F_w, None: no frontier, all at once
    fill: bool  # use spare slots outside the frontier
    share: int | None  # most open groups one worker holds, so that the others get theirs; None: no limit

    @classmethod
    def of(cls, schedule: ScheduleConfig, workers: int) -> AdmissionPolicy:
        if schedule.kind in ("serial", "cgp"):
            return cls(width=None, fill=False, share=-(-schedule.groups_per_round // workers))
        fill = schedule.kind == "stream" or schedule.frontier_mode == "fill"
        width = schedule.frontier_width
        return cls(width=width, fill=fill, share=None if fill else -(-width // workers))

    @property
    def hard_width(self) -> int:
        """The cap that the admission script enforces over all workers; 0: none."""
        return 0 if self.width is None or self.fill else self.width


def admissible(
    open: Sequence[str],
    deferred: AbstractSet[str],
    policy: AdmissionPolicy,
    *,
    held: int,
    spare_slots: int,
    samples_per_group: int,
) -> list[str]:
    """The groups this worker should admit now, lowest submission order first.

    Args:
        open: groups not yet serving-complete, in submission order (O of Eq. 5).
        deferred: those of them that nobody has admitted.
        policy: see AdmissionPolicy.
        held: open groups this worker already serves.
        spare_slots: sample slots of its engine that would idle now.
        samples_per_group: K.
    """
    waiting = [group for group in open if group in deferred]
    frontier = set(open[: policy.width])
    chosen = [group for group in waiting if group in frontier]
    if policy.share is not None:
        chosen = chosen[: max(0, policy.share - held)]
    if policy.fill:
        spare = spare_slots - len(chosen) * samples_per_group
        beyond = [group for group in waiting if group not in frontier]
        # The last group may overlap the end: its remaining samples head the engine's queue, so no slot idles.
        chosen += beyond[: max(0, -(-spare // samples_per_group))]
    return chosen


@dataclass(frozen=True, slots=True)
class TrainerView:
    """What the trainer's next step depends on. Groups are told by their submission order."""

    ready: tuple[int, ...]  # fetched and past the gate, in order of completion
    accumulated: int  # groups already in the present update
    drained: bool  # no more groups of this round are on their way
    arriving: tuple[int, ...] = ()  # announced, not ready: they wait to be fetched, or are just being verified
    outstanding: frozenset[int] = frozenset()
    """Submission orders neither ended nor consumed, ready ones included (only for `order: submission`).

    A group that replaces a filtered one has the next order of its round: it comes behind all that are known, so that a
    look before it was drawn takes nothing that a look after it would not.
    """

    def all_ready(self) -> TrainerView:
        """As it would be if fetching and verifying took no time."""
        return replace(self, ready=(*self.ready, *self.arriving), arriving=())


@dataclass(frozen=True, slots=True)
class Take:
    """Accumulate these groups into the present update, in this order."""

    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """The update is complete: seal it and step."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until more comes; says what for."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything of the round was consumed."""


Action = Take | Step | Wait | Finish


def next_action(view: TrainerView, schedule: ScheduleConfig) -> Action:
    """What the trainer does next, under any schedule, contract and order.

    It takes all that is ready and the update lacks: the trainer is busy either way, and the more samples it has at
    hand, the less its micro-batches pad.
    """
    missing = schedule.groups_per_update - view.accumulated
    if missing == 0:
        return Step()
    line = _in_order(view, schedule)
    no_more = view.drained and not view.arriving
    if no_more and not line:
        return Step() if view.accumulated else Finish()
    if schedule.kind == "serial" and not view.drained:
        return Wait(f"the round to drain ({len(view.ready)} groups are ready)")
    least = min(schedule.stream_min_groups, missing) if schedule.kind == "stream" else missing
    if len(line) >= least or no_more:
        return Take(tuple(line[:missing]))
    return Wait(_lacking(view, schedule, least))


def _in_order(view: TrainerView, schedule: ScheduleConfig) -> list[int]:
    if schedule.kind == "serial" or schedule.order == "submission":
        # Serial, as Slime does: once the round is drained all are known, and go sorted by index.
        known = view.outstanding if schedule.order == "submission" else {*view.ready, *view.arriving}
        return list(takewhile(set(view.ready).__contains__, sorted(known)))
    return list(view.ready)


def _lacking(view: TrainerView, schedule: ScheduleConfig, least: int) -> str:
    reason = f"{least} ready groups ({len(view.ready)} are ready, {len(view.arriving)} arriving)"
    if schedule.order == "submission" and view.outstanding and min(view.outstanding) not in view.ready:
        reason += f"; group {min(view.outstanding)} heads the line"
    return reason

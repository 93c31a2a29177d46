"""What the hand-over adds to a round: how long the trainer stood still although groups were materialized. Pure.

The trainer computes in intervals; before each but the steps it takes groups (their `claimed` events). Had bringing them
over taken no time, it would have gone on at once when it was free and the groups that it needed were materialized:

    added = start of the interval - max(end of the one before, that instant)

It needs the last of the groups it takes, under `stream` the first `stream_min_groups` of them, and under `serial` the
round's drain. What it does between two intervals without taking a group (seal, tell what a step did) is added whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rolloutpipe_core.config.models import ScheduleConfig
from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.observe.timeline import GroupTimeline, RoundTimeline

CLOCKS_MS = 3
"""The trainer's intervals are on its own estimate of the server's clock, claims on the server's own."""


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """One round, in ms."""

    round_ms: int  # rollout start to train end
    blocked_ms: int  # as the trainer itself measured: only fetching and verifying kept it from going on
    first_ms: int  # added before the first interval: upload, announcement, fetch, verification, assignment
    last_ms: int  # and before the last groups
    standstill_ms: int  # added before all intervals, these two and the ledger's calls in between included

    @property
    def handoff_share(self) -> float:
        """Blocked by fetch or verification, plus the first and the last group's hand-over, as a share of the round."""
        return (self.blocked_ms + self.first_ms + self.last_ms) / self.round_ms

    @property
    def standstill_share(self) -> float:
        return self.standstill_ms / self.round_ms


def critical_path(line: RoundTimeline, schedule: ScheduleConfig) -> CriticalPath:
    """The path of a trained round. Raises ValueError for one that is not."""
    if line.rollout_start_ms is None or line.trained_ms is None:
        raise ValueError(f"round {line.round} is not trained")
    busy = line.busy()
    gaps = [(line.rollout_start_ms, busy[0][0]), *((before[1], after[0]) for before, after in pairwise(busy))]
    added: list[int] = []
    with_groups: list[int] = []
    for free, start in gaps:
        taken = _claimed(line, free, start)
        since = max(free, _could_start(line, schedule, taken)) if taken else free
        added.append(max(0, start - since))
        if taken:
            with_groups.append(added[-1])
    return CriticalPath(
        round_ms=line.trained_ms - line.rollout_start_ms,
        blocked_ms=sum(update.blocked_ms for update in line.updates.values()),
        first_ms=with_groups[0],
        last_ms=with_groups[-1],
        standstill_ms=sum(added),
    )


def _claimed(line: RoundTimeline, free: int, start: int) -> list[GroupTimeline]:
    """The groups that were assigned while the trainer stood still from `free` to `start`."""
    claims = ((group, group.first(GroupState.CLAIMED)) for group in line.groups.values())
    return [group for group, at in claims if at is not None and free - CLOCKS_MS <= at <= start + CLOCKS_MS]


def _could_start(line: RoundTimeline, schedule: ScheduleConfig, taken: Sequence[GroupTimeline]) -> int:
    """When these groups would have been there if handing over took no time."""
    there = sorted(at for group in taken if (at := group.first(GroupState.MATERIALIZED)) is not None)
    if schedule.kind == "stream":
        return there[min(schedule.stream_min_groups, len(there)) - 1]
    if schedule.kind == "serial":
        return max(there[-1], line.drained_ms or 0)
    return there[-1]

"""The least time that any schedule of the trainer needs for groups that arrive when they do. Pure.

    floor = max over k of (arrival of the k-th group + training of the groups k to R)

Whatever the order, the groups that arrive as k-th or later are trained after the k-th's arrival.
"""

from __future__ import annotations

from collections.abc import Mapping

from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.observe.timeline import RoundTimeline


def floor_s(arrivals: Mapping[int, float], durations: Mapping[int, float]) -> float:
    """Seconds from the rollout's start.

    Args:
        arrivals: when each group (by its index) is in the FIFO, seconds from the rollout's start.
        durations: seconds of compute that training each of them takes.
    """
    floor = remaining = 0.0
    for group in sorted(arrivals, key=arrivals.__getitem__, reverse=True):
        remaining += durations[group]
        floor = max(floor, arrivals[group] + remaining)
    return floor


def arrivals_s(line: RoundTimeline) -> dict[int, float]:
    """When each group was announced, seconds from the rollout's start; nothing for one that never was."""
    assert line.rollout_start_ms is not None
    queued = {index: group.first(GroupState.QUEUED) for index, group in line.groups.items()}
    return {index: (at - line.rollout_start_ms) / 1000 for index, at in queued.items() if at is not None}


def durations_s(line: RoundTimeline) -> dict[int, float]:
    """Each group's share, by its tokens, of the compute of its update (step included), in seconds."""
    durations = {}
    for index, group in line.groups.items():
        if group.update is not None:
            update = line.updates[group.update]
            busy_ms = sum(end - start for start, end in update.busy)
            durations[index] = busy_ms / 1000 * group.tokens / update.tokens
    return durations

"""What the hand-over's benchmark computes from what it measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rolloutpipe_benchmarks.handoff.critical_path import critical_path
from rolloutpipe_benchmarks.handoff.handover import Sender, Turn, busy_cores, latency_of, throughput_of
from rolloutpipe_benchmarks.handoff.report import Table

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.models import ScheduleConfig
from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.observe.timeline import GroupTimeline, Move, RoundTimeline, UpdateTimeline

MS = 10**6


def group(index: int, materialized: int, claimed: int) -> GroupTimeline:
    moves = [Move(GroupState.MATERIALIZED, materialized, 1, ""), Move(GroupState.CLAIMED, claimed, 1, "")]
    return GroupTimeline(f"r000000-g{index:04d}", index, moves)


def a_round(groups: list[GroupTimeline], busy: list[tuple[int, int]], **facts: int) -> RoundTimeline:
    """Rollout starts at 0, training ends with the last interval."""
    update = UpdateTimeline(0, groups=len(groups), busy=tuple(busy), blocked_ms=facts.pop("blocked_ms", 0))
    return RoundTimeline(
        0,
        rollout_start_ms=0,
        trained_ms=busy[-1][1],
        groups={one.index: one for one in groups},
        updates={0: update},
        **facts,
    )


def test_the_critical_path_of_an_update_of_two_groups() -> None:
    """Free at 0 and again at 500. Groups 0, 1 are materialized at 100 and 200, trained from 220 on: 20 ms.

    The step comes 5 ms after the accumulation. Group 2 was there at 300, while the trainer computed, so taking it costs
    what passed since 500; group 3 was materialized at 900 when the trainer stood still, and trained from 930 on.
    """
    groups = [group(0, 100, 216), group(1, 200, 218), group(2, 300, 507), group(3, 900, 928)]
    line = a_round(groups, [(220, 400), (405, 500), (510, 600), (930, 1000)], blocked_ms=12)
    path = critical_path(line, ScheduleConfig(kind="cgp"))
    assert (path.first_ms, path.last_ms) == (20, 30)
    assert path.standstill_ms == 20 + 5 + 10 + 30
    assert (path.round_ms, path.blocked_ms) == (1000, 12)
    assert path.handoff_share == pytest.approx((12 + 20 + 30) / 1000)
    assert path.standstill_share == pytest.approx(0.065)


def test_stream_could_start_with_the_first_group_and_serial_not_before_the_drain() -> None:
    groups = [group(0, 100, 238), group(1, 200, 239)]
    line = a_round(groups, [(240, 400)], drained_ms=210)
    assert critical_path(line, ScheduleConfig(kind="stream")).first_ms == 140
    assert critical_path(line, ScheduleConfig(kind="stream", stream_min_groups=2)).first_ms == 40
    assert critical_path(line, ScheduleConfig(kind="serial")).first_ms == 30


def test_a_round_that_is_not_trained_has_no_path() -> None:
    with pytest.raises(ValueError, match="round 3 is not trained"):
        critical_path(RoundTimeline(3), ScheduleConfig())


def test_latencies_are_told_from_materialized_on() -> None:
    """Three groups: 10, 20 and 60 ms in all, of which 4, 8 and 12 until the announcement."""
    start = {"a": 0, "b": 100 * MS, "c": 200 * MS}
    announced = {"a": 4 * MS, "b": 108 * MS, "c": 212 * MS}
    tensors = {"a": 10 * MS, "b": 120 * MS, "c": 260 * MS}
    latency = latency_of(start, announced, tensors)
    assert (latency.groups, latency.p50_ms) == (3, 20)
    assert latency.p99_ms == pytest.approx(20 + 0.98 * 40), "between the second and the third"
    assert (latency.announced_p50_ms, latency.tensors_p50_ms) == (8, 12)


def test_the_ratio_is_that_of_the_turns() -> None:
    turns = [Turn(90, 100, 180), Turn(40, 80, 100), Turn(120, 100, 200)]
    throughput = throughput_of(turns, groups=10, at_once=8, group_bytes=5)
    assert (throughput.groups_s, throughput.bare_groups_s) == (90, 100)
    assert (throughput.ratio, throughput.least, throughput.most) == (0.9, 0.5, 1.2)
    assert (throughput.same_client_groups_s, throughput.same_client_ratio) == (180, 0.5)


def test_a_table_as_markdown() -> None:
    made = Table("Title", ("a", "b"), (("1", "2"),))
    assert made.markdown() == "**Title**\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n"


def test_ctrl_c_reaches_the_benchmark_alone_which_ends_its_processes() -> None:
    """A terminal signals a process group."""
    servers = {"ROLLOUTPIPE_REDIS_URL": "redis://127.0.0.1:1", "ROLLOUTPIPE_S3_ENDPOINT": "http://127.0.0.1:1"}
    before = children()
    with pytest.raises(KeyboardInterrupt), Sender(Connections.read(servers)), busy_cores():
        started = children() - before
        assert len(started) == 1 + len(os.sched_getaffinity(0))
        assert os.getpgrp() not in {os.getpgid(child) for child in started}
        raise KeyboardInterrupt
    assert not children() & started


def children() -> set[int]:
    return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}

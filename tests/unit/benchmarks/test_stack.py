"""What the stack's benchmark computes from what it measured."""

from __future__ import annotations

from statistics import StatisticsError

import pytest
from rolloutpipe_benchmarks.handoff.real_run import RealRun
from rolloutpipe_benchmarks.stack.pairs import Pair, Paired
from rolloutpipe_benchmarks.stack.report import Report, markdown
from rolloutpipe_benchmarks.stack.rollout_half import Shape, tokens_a_second
from rolloutpipe_benchmarks.stack.trainer_half import Updates

from rolloutpipe_core.domain import GroupState, RoundState
from rolloutpipe_core.errors import RolloutPipeError
from rolloutpipe_core.ledger.events import Event, GroupMoved, RoundMoved

OPENED_MS = 10_000


def moved(at_ms: int, after: RoundState) -> RoundMoved:
    return RoundMoved(f"{at_ms}-0", at_ms, "bench", 0, after, 1, {})


def queued(at_ms: int, index: int, tokens: int) -> GroupMoved:
    group, details = f"r000000-g{index:04d}", {"response_tokens": str(tokens), "tokens": "999"}
    return GroupMoved(
        f"{at_ms}-0", at_ms, "bench", group, 0, GroupState.MATERIALIZED, GroupState.QUEUED, 1, "", details
    )


A_ROUND: list[Event] = [
    moved(OPENED_MS, RoundState.OPEN),
    moved(OPENED_MS + 1, RoundState.GENERATING),
    queued(OPENED_MS + 1500, 1, 300),
    queued(OPENED_MS + 2500, 0, 200),
    moved(OPENED_MS + 2500, RoundState.DRAINED),
]


def test_tokens_a_second_are_those_of_responses_from_the_opening_to_the_drain() -> None:
    assert tokens_a_second(A_ROUND, groups=2) == pytest.approx(500 / 2.5)


@pytest.mark.parametrize("events", [A_ROUND[:3], A_ROUND[:2] + A_ROUND[3:], A_ROUND[:-1]])
def test_a_round_that_is_not_whole_is_no_measurement(events: list[Event]) -> None:
    with pytest.raises(RolloutPipeError, match="did not end whole"):
        tokens_a_second(events, groups=2)


def test_ratios_are_taken_within_a_turn() -> None:
    found = Paired.of([Pair(90, 100), Pair(200, 200), Pair(95, 50)])
    assert found == Paired(turns=3, ours=95, bare=100, ratio=1.0, least=0.9, most=1.9)
    with pytest.raises(StatisticsError):
        Paired.of([])


def test_the_tables_have_both_sides_and_the_ratios_range() -> None:
    paired = Paired.of([Pair(90, 100), Pair(98, 100)])
    shape = Shape(groups=16, samples=8, slots=64, turns=2)
    updates = Updates(groups=2, samples=8, longest=96, each=3, turns=2)
    run = RealRun("stream", 2, 16, 8, 3.5, 1.0, 4.0, 5.0, 0.0029, 0.012, 8.0, 0.003)
    lines = markdown(Report({}, shape, paired, updates, paired, run)).splitlines()
    assert lines[:7] == [
        "**Rollout: 16 groups of 8, 64 samples at once, 2 turns**",
        "",
        "|  | tokens/s |",
        "| --- | --- |",
        "| rollout service over SGLang | 94 |",
        "| bare client of the same server | 100 |",
        "| ratio, median (least to most) | 0.940 (0.900 to 0.980) |",
    ]
    assert lines[8] == "**Trainer: 3 updates of 2 groups of 8 a turn, 2 tensor parallel ranks, 2 turns**"
    assert lines[-1] == "| stream | 16 x 8 | 3.5 s | 1 ms | 4 ms | 5 ms | 0.29% | 1.20% |"

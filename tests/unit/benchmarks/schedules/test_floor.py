from __future__ import annotations

import pytest
from rolloutpipe_benchmarks.schedules.floor import arrivals_s, durations_s, floor_s

from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.observe.timeline import GroupTimeline, Move, RoundTimeline, UpdateTimeline


@pytest.mark.parametrize(
    ("durations", "floor"),
    [
        ({0: 1.0, 1: 1.0, 2: 1.0}, 11.0),  # rollout-bound: the last arrival and its training
        ({0: 5.0, 1: 5.0, 2: 5.0}, 17.0),  # trainer-bound: the first arrival (group 1, at 2 s) and all training
        ({0: 5.0, 1: 0.5, 2: 3.0}, 14.0),  # from the second on: 6 + 5 + 3; 2 + 8.5 and 10 + 3 are less
    ],
)
def test_the_largest_of_an_arrival_and_the_training_from_there_on(durations: dict[int, float], floor: float) -> None:
    assert floor_s({1: 2.0, 0: 6.0, 2: 10.0}, durations) == floor


def line() -> RoundTimeline:
    """Groups 0 and 1 queued 2 s and 1.5 s after the start; one update of 300 and 100 tokens, busy for 0.8 s."""
    made = RoundTimeline(0, rollout_start_ms=10_000)
    for index, at, tokens in ((0, 12_000, 300), (1, 11_500, 100)):
        group = GroupTimeline(f"r000000-g{index:04d}", index, tokens=tokens, update=0, update_index=index)
        group.moves = [Move(GroupState.ADMITTED, 10_000, 1, ""), Move(GroupState.QUEUED, at, 1, "")]
        made.groups[index] = group
    made.updates[0] = UpdateTimeline(0, groups=2, tokens=400, busy=((12_000, 12_500), (12_600, 12_900)))
    return made


def test_a_group_arrives_when_it_is_announced() -> None:
    assert arrivals_s(line()) == {0: 2.0, 1: 1.5}


def test_a_group_has_its_tokens_share_of_its_updates_compute() -> None:
    assert durations_s(line()) == pytest.approx({0: 0.6, 1: 0.2})

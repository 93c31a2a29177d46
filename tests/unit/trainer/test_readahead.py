"""The bound on groups in memory: it holds in any order of arrival, and never keeps the head of the line waiting."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from rolloutpipe_components.trainer.readahead import Arrival, ReadAhead, Ready, Verdict

from rolloutpipe_core.domain import Group, GroupRef, WeightVersion, group_id
from rolloutpipe_core.ledger.trainer import Announced

VERSION = WeightVersion(0, "ab" * 32)


def announced(index: int, round: int = 0) -> Announced:
    ref = GroupRef(group_id(round, index), round, index, 1, 1, VERSION, f"o{index}", "cd" * 32, 2, 8, 0.5, 0.5)
    return Announced(f"{index}-0", ref)


def verdict(arrival: Arrival) -> Verdict:
    group = Group("demo", 1, 0, arrival.announced.ref.index, 1, VERSION, "p", ())
    return Verdict(ready=Ready(arrival.announced.ref, group))


def indices(arrivals: list[Arrival]) -> list[int]:
    return [arrival.announced.ref.index for arrival in arrivals]


def fetch_all(line: ReadAhead) -> list[int]:
    """Fetch whatever may be; returns the order."""
    fetched = []
    while (arrival := line.begin_next(last_round=0)) is not None:
        line.finish(arrival, verdict(arrival))
        fetched.append(arrival)
    return indices(fetched)


def in_memory(line: ReadAhead) -> list[int]:
    return indices([arrival for arrival in line if arrival.begun or arrival.verdict])


def test_no_more_than_the_first_of_the_line_are_fetched_until_they_are_taken() -> None:
    line = ReadAhead(ahead=2, by_index=False)
    for index in (5, 3, 4):
        line.add(announced(index))
    assert indices(list(line.waiting(last_round=0))) == [5, 3]
    assert fetch_all(line) == [5, 3], "as they were announced"
    assert not list(line.waiting(last_round=0)), "the third has no room yet"
    line.remove({arrival for arrival in line if arrival.announced.ref.index == 5})
    assert fetch_all(line) == [4]


def test_a_late_head_pushes_the_last_one_out_until_its_turn_comes() -> None:
    line = ReadAhead(ahead=2, by_index=True)
    for index in (5, 3):
        line.add(announced(index))
    fetch_all(line)
    line.add(announced(0))
    assert in_memory(line) == [3]
    assert fetch_all(line) == [0], "the head is fetched although two were held"
    line.remove(set(line.held()))
    assert fetch_all(line) == [5], "again"


def test_what_was_pushed_out_while_it_was_fetched_is_not_kept() -> None:
    line = ReadAhead(ahead=1, by_index=True)
    line.add(announced(4))
    fetching = line.begin_next(last_round=0)
    assert fetching is not None
    line.add(announced(2))
    line.finish(fetching, verdict(fetching))
    assert in_memory(line) == []
    assert fetch_all(line) == [2]


def test_groups_of_a_later_round_wait_for_it() -> None:
    line = ReadAhead(ahead=4, by_index=True)
    line.add(announced(0, round=1))
    line.add(announced(7))
    assert fetch_all(line) == [7]
    later = line.begin_next(last_round=1)
    assert later is not None
    assert later.announced.ref.round == 1


@given(st.integers(1, 5), st.booleans(), st.permutations(range(9)), st.randoms())
def test_the_bound_holds_and_every_group_gets_its_turn(
    ahead: int, by_index: bool, order: list[int], rng: random.Random
) -> None:
    """Groups are announced in any order while training takes the head of the line as soon as it is there."""
    line, taken, coming = ReadAhead(ahead, by_index), list[int](), list(order)
    wanted = sorted(order) if by_index else list(order)
    while len(taken) < len(order):
        if coming and rng.random() < 0.6:
            line.add(announced(coming.pop(0)))
        for _ in range(rng.randrange(3)):
            if (arrival := line.begin_next(last_round=0)) is not None:
                line.finish(arrival, verdict(arrival))
        assert len(in_memory(line)) <= ahead
        head = next((arrival for arrival in line if arrival.announced.ref.index == wanted[len(taken)]), None)
        if head is not None and not coming:
            fetch_all(line)
            assert head.is_ready, "the head of the line never waits for room"
        if head is not None and head.is_ready:
            taken.append(head.announced.ref.index)
            line.remove({head})
    assert taken == wanted

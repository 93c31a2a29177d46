"""The intake's threads wake one another: with polls of an hour, whoever is forgotten waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rolloutpipe_components.trainer import intake as module
from rolloutpipe_components.trainer.intake import Intake, RoundFacts

from rolloutpipe_core.domain import GroupRef, WeightVersion, group_id
from rolloutpipe_core.ledger.trainer import Announced, CurrentGroup, Drained

VERSION = WeightVersion(0, "ab" * 32)
FACTS = RoundFacts("demo", 1, 0, VERSION, 4, None)
LONG_S = 60.0
READ_AT_ONCE = 5


class Fifo:
    """As much of a ledger as the intake asks for; waiting for entries really waits."""

    def __init__(self) -> None:
        self._entries: list[Any] = []
        self._come = threading.Condition()
        self.rejected: list[str] = []

    def append(self, *entries: Any) -> None:
        with self._come:
            self._entries += entries
            self._come.notify_all()

    def read(self, after: str) -> list[Any]:
        with self._come:
            return [entry for entry in self._entries if int(entry.entry[:-2]) > int(after[:-2])][:READ_AT_ONCE]

    def wait_for_entries(self, after: str, timeout_ms: int) -> None:
        with self._come:
            self._come.wait_for(lambda: bool(self.read(after)), timeout_ms / 1000)

    def current(self, group: str) -> CurrentGroup:
        return CurrentGroup("queued", 1, f"{int(group[-4:]) + 1}-0")

    def reject(self, announced: Announced, reason: str, most: int) -> tuple[str, int]:
        self.rejected.append(announced.ref.group)
        return "rejected", 2


def announced(index: int, round: int = 0) -> Announced:
    ref = GroupRef(group_id(round, index), round, index, 1, 1, VERSION, f"o{index}", "cd" * 32, 4, 9, 0.5, 0.5)
    return Announced(f"{index + 1}-0", ref)


@pytest.fixture
def fifo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fifo]:
    monkeypatch.setattr(module, "POLL_MS", 3_600_000)
    one = Fifo()
    yield one
    one.append(Drained("1000000-0", 99, 1))  # the reading thread's last wait


def take_all(intake: Intake, count: int) -> list[int]:
    taken: list[int] = []
    while len(taken) < count:
        ready = intake.collect().ready
        intake.take(ready)
        taken += [one.ref.index for one in ready]
        if not ready:
            assert intake.wait(LONG_S), f"nobody was woken after {len(taken)} groups"
    return taken


@pytest.mark.parametrize("ahead", [2, 3, 32])
def test_groups_that_come_one_by_one(fifo: Fifo, ahead: int) -> None:
    with Intake(fifo, lambda ref, expected: ref, 0, ahead, by_index=False) as intake:  # type: ignore[arg-type]
        intake.begin_round(FACTS)
        for index in range(50):
            fifo.append(announced(index))
            assert take_all(intake, 1) == [index]
        fifo.append(Drained("51-0", 0, 1))
        while intake.collect().drained != 1:
            assert intake.wait(LONG_S)


@pytest.mark.parametrize("ahead", [2, 3, 32])
@pytest.mark.parametrize("early", [False, True])
def test_groups_that_come_at_once(fifo: Fifo, ahead: int, early: bool) -> None:
    if early:  # before the round begins
        fifo.append(*map(announced, range(200)))
    with Intake(fifo, lambda ref, expected: ref, 0, ahead, by_index=False) as intake:  # type: ignore[arg-type]
        intake.begin_round(FACTS)
        if not early:
            fifo.append(*map(announced, range(200)))
        assert sorted(take_all(intake, 200)) == list(range(200))


def test_a_failed_fetch_wakes_the_trainer(fifo: Fifo) -> None:
    def fail(ref: GroupRef, expected: object) -> Any:
        raise OSError("gone")

    with Intake(fifo, fail, 0, 32, by_index=False) as intake:  # type: ignore[arg-type]
        intake.begin_round(FACTS)
        fifo.append(announced(0))
        with pytest.raises(OSError, match="gone"):
            take_all(intake, 1)


def test_a_failed_read_wakes_the_trainer(fifo: Fifo, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(after: str, timeout_ms: int) -> None:
        raise OSError("Redis is gone")

    monkeypatch.setattr(fifo, "wait_for_entries", fail)
    with Intake(fifo, lambda ref, expected: ref, 0, 32, by_index=False) as intake:  # type: ignore[arg-type]
        intake.begin_round(FACTS)
        with pytest.raises(OSError, match="Redis is gone"):
            take_all(intake, 1)


def test_the_next_round_wakes_the_fetchers(fifo: Fifo) -> None:
    with Intake(fifo, lambda ref, expected: ref, 0, 32, by_index=False) as intake:  # type: ignore[arg-type]
        intake.begin_round(FACTS)
        fifo.append(announced(0), announced(1, round=1))
        assert take_all(intake, 1) == [0]
        intake.begin_round(RoundFacts("demo", 1, 1, VERSION, 4, None))
        assert take_all(intake, 1) == [1]

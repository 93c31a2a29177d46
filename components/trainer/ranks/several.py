"""Several ranks as the service sees them: one reader of groups and one trainer, of which every rank does its part."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from rolloutpipe_core.domain import Group, GroupRef
from rolloutpipe_core.errors import RankLost, RolloutPipeError
from rolloutpipe_core.gate import Expectation

from ..rank import Rank, Start
from ..trainer import Backend, Trainer, UpdateResult
from .crew import REMEDY, Answers, Crew
from .messages import from_message, read_message, start_message
from .verdict import verdict

T = TypeVar("T")
RANK_0 = 0


class SeveralRanks:
    """Implements `Ranks` (rank.py) on rank 0: its own part, and the crew's."""

    def __init__(self, own: Rank, crew: Crew) -> None:
        self._own, self._crew = own, crew
        self._numbers: weakref.WeakKeyDictionary[Group, int] = weakref.WeakKeyDictionary()

    def read(self, ref: GroupRef, expected: Expectation) -> Group:
        """Every rank fetches and verifies the group, and keeps it as long as rank 0 keeps what is returned here."""
        question = self._crew.ask("read", **read_message(ref, expected))
        found: dict[int, RolloutPipeError] = {}
        group = None
        try:
            group = self._own.read(ref, expected)
        except RolloutPipeError as error:
            found[RANK_0] = error
        against = verdict(found | _errors(self._crew.answers(question)), self._crew.ranks)
        if against is not None:
            self._crew.forget(question.number)
            raise against
        assert group is not None
        self._numbers[group] = question.number
        weakref.finalize(group, self._crew.forget, question.number).atexit = False
        return group

    def start(self, start: Start) -> tuple[Trainer, int]:
        """First all ranks fetch, so that what is gone from the store ends none of them; then all load."""
        question = self._crew.ask("fetch", start=start_message(start))
        with self._own.files(start) as files:
            against = verdict(_errors(self._crew.answers(question)), self._crew.ranks)
            if against is not None:
                raise against
            (backend, vocabulary), _ = self._crew.together("load", lambda: self._own.load(files))
        return TrainerOfAll(backend, self._crew, self._numbers.__getitem__), vocabulary


class TrainerOfAll:
    """Implements `Trainer`: each call is every rank's."""

    def __init__(self, own: Backend, crew: Crew, number_of: Callable[[Group], int]) -> None:
        """`number_of` a group that was read: how the followers know it."""
        self._own, self._crew, self._number_of = own, crew, number_of

    def begin_round(self) -> None:
        self._crew.together("begin_round", self._own.begin_round)

    def begin_update(self, update: int) -> None:
        self._crew.together("begin_update", lambda: self._own.begin_update(update), update=update)

    def accumulate(self, groups: Sequence[Group]) -> None:
        numbers = [self._number_of(group) for group in groups]
        self._crew.together("accumulate", lambda: self._own.accumulate(groups), groups=numbers)

    def step(self) -> UpdateResult:
        """Raises RankLost also when a rank's step was another than rank 0's."""
        result, answers = self._crew.together("step", self._own.step)
        for rank, answer in answers.items():
            theirs = UpdateResult(**answer["result"])
            if _counts(theirs) != _counts(result):
                raise RankLost(f"rank {rank} made another step", given=str(theirs), expected=str(result), remedy=REMEDY)
        return result

    def export_weights(self, directory: Path) -> None:
        self._crew.together("export", lambda: self._own.export_weights(directory))

    def save(self, directory: Path) -> None:
        self._crew.together("save", lambda: self._own.save(directory))


def _errors(answers: Answers) -> dict[int, RolloutPipeError]:
    return {rank: from_message(answer["error"]) for rank, answer in answers.items() if "error" in answer}


def _counts(result: UpdateResult) -> dict[str, object]:
    """All but the metrics."""
    return {name: value for name, value in asdict(result).items() if name != "metrics"}

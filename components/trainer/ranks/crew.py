"""Rank 0's end of the control plane: it gives orders, gathers answers, and knows at once when a rank is lost.

    any thread: ask ──{do, number, ...}──> every follower
                         answers <──{number, ...}── a listening thread for each follower
                                     {failed}, the end of the connection, or not even {alive}: the rank is lost

A lost rank ends this process. Whoever waits here hears of it; whoever stands in a collective may never, so that the
listening thread ends the process itself when nobody did within a moment. The restart replays from the last commit.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from rolloutpipe_core.errors import DeadlineExceeded, RankLost, RolloutPipeError
from rolloutpipe_core.ledger.beacon import Waiting

from .collective import timed_out
from .meeting import Line

log = logging.getLogger("rolloutpipe.trainer")

GRACE_S = 3.0
"""What the main thread gets to end by itself; and how long it looks for the cause when a collective breaks."""
POLL_S = 0.2
SILENT_S = 2.0
"""A rank that was not heard of for so long, though it beats every half a second, stands still."""
REMEDY = "see the rank's own lines in the log; started again, the trainer goes on from the last commit"

T = TypeVar("T")
Answers = dict[int, dict[str, Any]]
"""By rank."""


@dataclass(slots=True)
class Question:
    """An order, and who has answered it."""

    do: str
    number: int
    answers: Answers = field(default_factory=dict)


class Crew:
    """The followers. A context manager: they end with it."""

    def __init__(
        self,
        lines: Mapping[int, Line],
        name: str,
        deadline_s: float,
        waiting: Callable[[str, float], AbstractContextManager[Waiting]],
        how_ended: Callable[[int], str],
    ) -> None:
        """`name`: the service's; `waiting` shows a wait (Beacon.waiting); `how_ended` says how a rank's process did."""
        self.ranks = len(lines) + 1
        self._lines = dict(lines)
        self._name = name
        self._deadline_s = deadline_s
        self._waiting = waiting
        self._how_ended = how_ended
        self._numbers = count(1)
        self._open: dict[int, Question] = {}
        self._forgotten: deque[int] = deque()
        self._doing = ""
        self._heard = dict.fromkeys(lines, time.monotonic())
        self._lost: RolloutPipeError | None = None
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._listen, args=(rank,), name=f"rank-{rank}", daemon=True) for rank in lines
        ]

    def __enter__(self) -> Crew:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Followers that are between two orders end in good order, others all the same. Repeatable."""
        if self._ended.is_set():
            return
        self._ended.set()
        with suppress(RolloutPipeError):
            self._send({"do": "end", "number": next(self._numbers)})
        for line in self._lines.values():
            line.hang_up()

    def together(self, do: str, own: Callable[[], T], **message: Any) -> tuple[T, Answers]:
        """Have every rank do the same; `own` is this one's part. Returns its outcome and the others' answers.

        Raises RankLost, and DeadlineExceeded with the ranks that did not come.
        """
        self._doing = do
        question = self.ask(do, **message)
        try:
            outcome = own()
        except RolloutPipeError:
            raise
        except Exception as error:
            raise self._cause(do, error) from error
        return outcome, self.answers(question)

    def ask(self, do: str, **message: Any) -> Question:
        """Give every follower an order, without waiting. Raises what lost a rank."""
        question = Question(do, next(self._numbers))
        with self._changed:
            if self._lost is not None:
                raise self._lost
            self._open[question.number] = question
        self._send({"do": do, "number": question.number, **message})
        return question

    def answers(self, question: Question) -> Answers:
        """Wait for every follower's answer. Raises what lost a rank, and DeadlineExceeded with those that owe one."""
        try:
            if not self._complete(question, 0):
                with self._waiting(self._owed(question), self._deadline_s) as wait:
                    while not self._complete(question, POLL_S):
                        wait.what = self._owed(question)
                        wait.check("the other ranks have answered")
            return question.answers
        finally:
            with self._changed:
                self._open.pop(question.number, None)

    def forget(self, number: int) -> None:
        """Tell the followers, with the next order, that this group's copies are needed no more. From any thread.

        It takes no lock: it is called where a group's last reference goes, which may be anywhere.
        """
        self._forgotten.append(number)

    def _complete(self, question: Question, timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._lost or len(question.answers) == len(self._lines), timeout_s)
            if self._lost is not None:
                raise self._lost
            return len(question.answers) == len(self._lines)

    def _owed(self, question: Question) -> str:
        return f"{named(self._lines.keys() - question.answers.keys())} to {question.do}"

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending:
            message = {**message, "forget": [self._forgotten.popleft() for _ in range(len(self._forgotten))]}
            for rank, line in self._lines.items():
                try:
                    line.channel.send(message, self._deadline_s)
                except TimeoutError:
                    raise RankLost(
                        f"rank {rank} takes no orders",
                        given=f"{message['do']} for {self._deadline_s:g} s",
                        remedy=REMEDY,
                    ) from None
                except OSError:
                    pass  # its listening thread tells why

    def _listen(self, rank: int) -> None:
        """A listening thread."""
        try:
            while True:
                answer = self._lines[rank].channel.receive(self._deadline_s)
                self._heard[rank] = time.monotonic()
                if "failed" in answer:
                    # Late are the ranks that it waited for, not this one.
                    self._lose(self._late(answer["failed"]) if answer.get("late") else _lost(rank, answer["failed"]))
                    return
                if "alive" in answer:
                    continue
                with self._changed:
                    if (question := self._open.get(answer["number"])) is not None:
                        question.answers[rank] = answer
                        self._changed.notify_all()
        except TimeoutError:
            self._lose(self._stands_still(rank))
        except (EOFError, OSError):
            self._lose(_lost(rank, self._how_ended(rank)))

    def _lose(self, lost: RolloutPipeError) -> None:
        with self._changed:
            if self._lost is not None or self._ended.is_set():
                return  # one brings down the others
            self._lost = lost
            self._changed.notify_all()
        if not self._ended.wait(GRACE_S):
            log.error("trainer %s ends: %s", self._name, lost)
            os._exit(lost.exit_code)

    def _stands_still(self, rank: int) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"waited {self._deadline_s:g} s for a sign of life from rank {rank}",
            given="its connection is open: its process is stopped, or its machine out of reach",
            remedy=REMEDY,
        )

    def _late(self, said: str) -> DeadlineExceeded:
        """A collective's deadline passed, on whichever rank."""
        now = time.monotonic()
        silent = [rank for rank, heard in self._heard.items() if now - heard > SILENT_S]
        signs = f"no sign of life from {named(silent)}" if silent else "all ranks show signs of life"
        return DeadlineExceeded(
            f"waited {self._deadline_s:g} s, in a collective, for {named(silent) or 'other ranks'} to {self._doing}",
            given=f"{signs}; {said.partition(chr(10))[0]}",
            remedy=REMEDY if silent else f"raise deadlines.rank_s if one computes that much longer; {REMEDY}",
        )

    def _cause(self, do: str, error: Exception) -> RolloutPipeError:
        """Why this rank's part broke: a collective breaks here when another rank is lost, or late."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost, GRACE_S)
            if self._lost is not None:
                return self._lost
        if timed_out(error):
            return self._late(str(error))
        log.error("rank 0 failed to %s", do, exc_info=error)
        return RankLost(f"rank 0 failed to {do}", given=f"{type(error).__name__}: {error}", remedy=REMEDY)


def _lost(rank: int, how: str) -> RankLost:
    return RankLost(f"rank {rank} of the trainer is lost", given=how, remedy=REMEDY)


def named(ranks: Collection[int]) -> str:
    """`named({3, 1}) == "rank 1, 3"`; of none it is empty."""
    return f"rank {', '.join(map(str, sorted(ranks)))}" if ranks else ""

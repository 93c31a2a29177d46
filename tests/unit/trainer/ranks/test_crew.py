"""Rank 0's end, with followers that are threads over real sockets."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from rolloutpipe_components.trainer.ranks.crew import Crew
from rolloutpipe_components.trainer.ranks.meeting import Line
from rolloutpipe_components.trainer.ranks.several import SeveralRanks, TrainerOfAll
from rolloutpipe_components.trainer.trainer import UpdateResult

from rolloutpipe_core.channel import Channel
from rolloutpipe_core.domain import GroupRef, WeightVersion
from rolloutpipe_core.errors import BadInput, Damaged, DeadlineExceeded, RankLost
from rolloutpipe_core.gate import Expectation
from rolloutpipe_core.ledger.beacon import Waiting

Reply = Callable[[dict[str, Any]], dict[str, Any] | None]
RESULT = UpdateResult(update=0, groups=1, samples=2, tokens=9, skipped=False, metrics={"loss": 0.5})


@contextmanager
def waiting(what: str, deadline_s: float) -> Iterator[Waiting]:
    yield Waiting(what, deadline_s)


class Follower:
    """Answers as `reply` says: None ends the connection, {} is a plain answer. It says that it is alive if `beats`."""

    def __init__(self, reply: Reply, beats: bool = True) -> None:
        self.received: list[dict[str, Any]] = []
        ours, theirs = socket.socketpair()
        self.line = Line(theirs, _channel(theirs))
        self._own = Line(ours, _channel(ours))
        self._reply = reply
        self._sending = threading.Lock()
        for work in (self._serve, self._beat) if beats else (self._serve,):
            threading.Thread(target=work, daemon=True).start()

    def _beat(self) -> None:
        with suppress(OSError):
            while True:
                self._tell({"alive": True})
                time.sleep(0.05)

    def _serve(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                order = self._own.channel.receive()
                self.received.append(order)
                if order["do"] == "end":
                    return
                answer = self._reply(order)
                if answer is None:
                    self._own.hang_up()
                    return
                if answer.get("silent") is None:
                    self._tell({"number": order["number"], **answer})

    def _tell(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._own.channel.send(message)


def _channel(end: socket.socket) -> Channel:
    end.setblocking(False)
    return Channel(end.fileno(), end.fileno())


def plain(order: dict[str, Any]) -> dict[str, Any]:
    return {"result": vars_of(RESULT)} if order["do"] == "step" else {}


def vars_of(result: UpdateResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in UpdateResult.__dataclass_fields__}


@contextmanager
def crew_of(
    *replies: Reply, deadline_s: float = 20.0, still: Collection[int] = ()
) -> Iterator[tuple[Crew, list[Follower]]]:
    """Ranks in `still` give no sign of life."""
    followers = [Follower(reply, beats=rank not in still) for rank, reply in enumerate(replies, 1)]
    lines = {rank: follower.line for rank, follower in enumerate(followers, 1)}
    with Crew(lines, "trainer", deadline_s, waiting, lambda rank: f"how rank {rank} ended") as crew:
        yield crew, followers


class OwnBackend:
    """Rank 0's part, which keeps nothing."""

    def __init__(self, step: Callable[[], UpdateResult] = lambda: RESULT) -> None:
        self.step = step

    def begin_round(self) -> None:
        pass

    def accumulate(self, groups) -> None:
        pass


class OwnRank:
    """Reads whatever `found` is, or raises it."""

    def __init__(self, found: Callable[[], Any]) -> None:
        self._found = found

    def read(self, ref, expected):
        return self._found()


def raised(error: Exception) -> Any:
    raise error


def test_every_rank_does_its_part_and_answers_come_by_rank() -> None:
    with crew_of(lambda order: {"x": 1}, lambda order: {"x": 2}) as (crew, followers):
        outcome, answers = crew.together("step", lambda: "own", update=7)
    assert outcome == "own"
    assert {rank: answer["x"] for rank, answer in answers.items()} == {1: 1, 2: 2}
    assert [follower.received[0]["update"] for follower in followers] == [7, 7]


def test_a_rank_that_goes_is_lost_and_named() -> None:
    with crew_of(plain, lambda order: None) as (crew, _):
        with pytest.raises(RankLost, match="rank 2 of the trainer is lost; given: how rank 2 ended"):
            crew.together("accumulate", lambda: None)
        with pytest.raises(RankLost, match="rank 2"):
            crew.ask("step")


def test_a_rank_that_fails_is_lost_with_what_it_said() -> None:
    lost = pytest.raises(RankLost, match="rank 1 of the trainer is lost; given: out of memory")
    with crew_of(lambda order: {"failed": "out of memory"}) as (crew, _), lost:
        crew.together("step", lambda: None)


def test_a_collective_that_breaks_on_rank_0_is_explained_by_the_rank_that_broke_it() -> None:
    lost = pytest.raises(RankLost, match="out of memory")
    with crew_of(lambda order: {"failed": "out of memory"}) as (crew, _), lost:
        crew.together("step", lambda: raised(RuntimeError("Connection closed by peer")))


def test_an_error_of_rank_0_alone_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutpipe_components.trainer.ranks.crew.GRACE_S", 0.01)
    with crew_of(plain) as (crew, _):
        with pytest.raises(RankLost, match="rank 0 failed to step; given: RuntimeError: no memory"):
            crew.together("step", lambda: raised(RuntimeError("no memory")))
        with pytest.raises(BadInput, match="own"):
            crew.together("step", lambda: raised(BadInput("own")))


def test_a_rank_that_never_answers_is_named() -> None:
    late = pytest.raises(DeadlineExceeded, match=r"waited 1 s for rank 2 to save")
    with crew_of(plain, lambda order: {"silent": True}, deadline_s=1.0) as (crew, _), late:
        crew.together("save", lambda: None)


def test_a_rank_that_stands_still_is_named_whatever_the_others_do() -> None:
    """No answer is awaited of it: rank 0 may stand in a collective that it does not come to."""
    with crew_of(plain, plain, still={2}, deadline_s=1.0) as (crew, _):
        with pytest.raises(DeadlineExceeded, match="waited 1 s for a sign of life from rank 2"):
            crew.together("step", lambda: time.sleep(1.5))
        with pytest.raises(DeadlineExceeded, match="rank 2"):
            crew.ask("step")


TIMED_OUT = "[unbound_buffer.cc:81] Timed out waiting 20000ms for recv operation to complete\nException raised from"


@pytest.mark.parametrize("late", ["rank 0", "rank 1"])
def test_who_was_late_for_a_collective_is_not_who_waited(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 stands still; the deadline passes on rank 0 or on rank 1."""
    monkeypatch.setattr("rolloutpipe_components.trainer.ranks.crew.SILENT_S", 0.5)
    if late == "rank 0":
        monkeypatch.setattr("rolloutpipe_components.trainer.ranks.crew.GRACE_S", 0.01)

    def first(order: dict[str, Any]) -> dict[str, Any]:
        time.sleep(1)
        return {"failed": TIMED_OUT, "late": True} if late == "rank 1" else {"silent": True}

    def own() -> None:
        time.sleep(1)
        raise RuntimeError(TIMED_OUT if late == "rank 0" else "Connection closed by peer")

    expected = r"waited 20 s, in a collective, for rank 2 to step; given: no sign of life from rank 2; \[.*complete; do"
    named = pytest.raises(DeadlineExceeded, match=expected)
    with crew_of(first, lambda order: {"silent": True}, still={2}) as (crew, _), named:
        crew.together("step", own)


def test_ranks_that_are_alive_and_too_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutpipe_components.trainer.ranks.crew.GRACE_S", 0.01)
    apart = pytest.raises(DeadlineExceeded, match="for other ranks to step; given: all ranks show signs of life")
    with crew_of(plain) as (crew, _), apart:
        crew.together("step", lambda: raised(RuntimeError(TIMED_OUT)))


def test_an_answer_to_a_question_that_was_given_up_is_passed_over() -> None:
    first = threading.Event()

    def late(order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "save":
            first.wait(20)
        return {"to": order["do"]}

    with crew_of(late, deadline_s=1.0) as (crew, _):
        with pytest.raises(DeadlineExceeded):
            crew.answers(crew.ask("save"))
        first.set()
        assert crew.answers(crew.ask("step"))[1]["to"] == "step"


def test_a_good_group_is_kept_by_the_followers_as_long_as_rank_0_keeps_it(make_group) -> None:
    kept = [make_group(seed=0)]
    with crew_of(plain) as (crew, (follower,)):
        ranks = SeveralRanks(OwnRank(lambda: kept[0]), crew)  # type: ignore[arg-type]
        ref, expected = reference()
        group = ranks.read(ref, expected)
        trainer = TrainerOfAll(OwnBackend(), crew, ranks._numbers.__getitem__)  # type: ignore[arg-type]
        trainer.accumulate([group])
        read, accumulate = follower.received
        assert accumulate["groups"] == [read["number"]]
        assert accumulate["forget"] == []
        del group
        kept.clear()
        gc.collect()
        trainer.begin_round()
        assert follower.received[-1]["forget"] == [read["number"]]


def reference() -> tuple[GroupRef, Expectation]:
    version = WeightVersion(0, "0" * 64)
    ref = GroupRef("r000000-g0000", 0, 0, 1, 1, version, "object", "1" * 64, 4, 9, 0.0, 0.0)
    return ref, Expectation("x", 1, version, 4, 1)


def test_one_followers_bad_read_rejects_everywhere_and_all_forget(make_group) -> None:
    damaged = {"error": {"kind": "Damaged", "what": "altered object", "given": "", "expected": "", "remedy": ""}}
    with crew_of(plain, lambda order: damaged if order["do"] == "read" else {}) as (crew, followers):
        ranks = SeveralRanks(OwnRank(lambda: make_group(seed=0)), crew)  # type: ignore[arg-type]
        with pytest.raises(Damaged, match="rank 2 of 3: altered object"):
            ranks.read(*reference())
        crew.answers(crew.ask("begin_round"))
    for follower in followers:
        assert follower.received[1]["forget"] == [follower.received[0]["number"]]


def test_rank_0s_own_bad_read_is_told_after_all_answered() -> None:
    with crew_of(plain) as (crew, _):
        ranks = SeveralRanks(OwnRank(lambda: raised(Damaged("missing object: x"))), crew)  # type: ignore[arg-type]
        with pytest.raises(Damaged, match="rank 0 of 2: missing object: x"):
            ranks.read(*reference())


def test_a_rank_that_made_another_step_is_found_out() -> None:
    other = vars_of(RESULT) | {"skipped": True}
    with crew_of(lambda order: {"result": other}) as (crew, _):
        trainer = TrainerOfAll(OwnBackend(), crew, lambda group: 0)  # type: ignore[arg-type]
        with pytest.raises(RankLost, match="rank 1 made another step"):
            trainer.step()


def test_metrics_are_rank_0s() -> None:
    with crew_of(plain) as (crew, _):
        assert TrainerOfAll(OwnBackend(), crew, lambda group: 0).step() == RESULT  # type: ignore[arg-type]

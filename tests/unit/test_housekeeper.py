from __future__ import annotations

import threading
from collections.abc import Callable

from rolloutpipe_core.errors import Fenced, StoreUnavailable
from rolloutpipe_core.housekeeper import Housekeeper

WAIT_S = 60.0


def raising(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_works_run_in_order_and_the_pass_is_told() -> None:
    done: list[str] = []
    with Housekeeper([lambda: done.append("archive"), lambda: done.append("delete")], done.append) as keeper:
        assert keeper.finish(WAIT_S)
    assert done == ["archive", "delete", ""]


def test_a_busy_housekeeper_is_not_nudged_twice() -> None:
    go_on, passes = threading.Event(), []

    def work() -> None:
        passes.append(1)
        go_on.wait(WAIT_S)

    with Housekeeper([work], lambda _: None) as keeper:
        keeper.nudge()
        keeper.nudge()
        assert not keeper.finish(0.01)
        go_on.set()
    assert passes == [1]


def test_the_last_pass_comes_after_the_one_under_way() -> None:
    begun, go_on, passes = threading.Event(), threading.Event(), []

    def work() -> None:
        passes.append(1)
        begun.set()
        go_on.wait(WAIT_S)

    with Housekeeper([work], lambda _: None) as keeper:
        keeper.nudge()
        begun.wait(WAIT_S)
        go_on.set()
        assert keeper.finish(WAIT_S)
    assert passes == [1, 1]


def test_a_failure_is_told_and_ends_nothing() -> None:
    told: list[str] = []
    works = [
        raising(StoreUnavailable("the store\nstayed away")),
        raising(KeyError("version")),
        lambda: told.append("on"),
    ]
    with Housekeeper(works, told.append) as keeper:
        keeper.finish(WAIT_S)
        keeper.finish(WAIT_S)
    assert told == ["on", "the store stayed away; 'version'"] * 2


def test_a_redis_that_cannot_be_told_ends_nothing() -> None:
    done: list[str] = []

    def tell(_: str) -> None:
        raise StoreUnavailable("away")

    with Housekeeper([lambda: done.append("work")], tell) as keeper:
        keeper.finish(WAIT_S)
        keeper.finish(WAIT_S)
    assert done == ["work", "work"]


def test_a_replaced_trainers_housekeeper_stays_quiet() -> None:
    done: list[str] = []
    with Housekeeper([raising(Fenced("replaced")), lambda: done.append("next")], done.append) as keeper:
        keeper.finish(WAIT_S)
        assert keeper.finish(WAIT_S)
    assert done == []

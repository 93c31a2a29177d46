"""The object store answers 500 and 503, is slow, breaks connections in the middle, loses answers, refuses, stays away.

Nothing of it is damage, and nothing accepted is lost.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from rolloutpipe_core.config.connections import S3Connection
from rolloutpipe_core.domain import GroupState

from .conftest import Run, check_complete
from .proxy import Fault, FaultyProxy, Request

MakeProxy = Callable[[Callable[[Request], Fault]], FaultyProxy]
COMMIT = "/commits/c0"


@pytest.fixture
def make_proxy(seaweedfs: S3Connection) -> Iterator[MakeProxy]:
    made: list[FaultyProxy] = []

    def make(fault: Callable[[Request], Fault]) -> FaultyProxy:
        url = urlsplit(seaweedfs.endpoint or "")
        made.append(FaultyProxy((str(url.hostname), url.port or 0), fault))
        return made[-1]

    yield make
    for proxy in made:
        proxy.fault = lambda request: Fault.NONE
        proxy.refuse()


def through(run: Run, proxy: FaultyProxy) -> None:
    run.connections = replace(run.connections, s3=replace(run.connections.s3, endpoint=proxy.endpoint))


def is_claimed(run: Run, round: int) -> bool:
    return any(row["state"] == GroupState.CLAIMED for row in run.reader.groups(round))


def test_a_run_through_every_kind_of_disturbance_is_complete(run: Run, make_proxy: MakeProxy) -> None:
    """A quarter of all requests is disturbed, every commit's first answer is lost, and for a while nobody listens."""
    chance, disturbances = random.Random(7), itertools.cycle(fault for fault in Fault if fault is not Fault.NONE)

    def disturb(request: Request) -> Fault:
        if request.creates(COMMIT):
            return Fault.LOST_ANSWER if request.tries == 0 else Fault.NONE
        return next(disturbances) if chance.random() < 1 / 4 else Fault.NONE

    proxy = make_proxy(disturb)
    through(run, proxy)
    run.configure(schedule={"rounds": 2}, deadlines={"store_s": 60})
    services = [run.start("trainer"), run.start("rollout")]
    run.wait_for(lambda: is_claimed(run, 0))
    proxy.refuse()
    time.sleep(2)
    proxy.listen()
    for service in services:
        service.succeed()
        assert "waits for object store (" in service.text()
    commits = [request for request, _ in proxy.log if request.creates(COMMIT)]
    assert len(commits) >= 4, "each was sent again after its answer was lost"
    assert set(proxy.happened) == set(Fault), proxy.happened
    check_complete(run, rounds=2)
    assert {row["rejections"] for round in range(2) for row in run.reader.groups(round)} == {"0"}


def test_a_store_that_stays_away_ends_both_with_its_reason_and_a_restart_completes_the_run(
    run: Run, make_proxy: MakeProxy
) -> None:
    """It answers SlowDown from the trainer's first fetch on, while rollout uploads its last group."""
    fetched = threading.Event()

    def slow_down(request: Request) -> Fault:
        if request.method == "GET" and "/groups/" in request.path:
            fetched.set()
        if request.creates("/groups/r000000/g0005"):
            fetched.wait(15)
        return Fault.ERROR_503 if fetched.is_set() else Fault.NONE

    proxy = make_proxy(slow_down)
    through(run, proxy)
    run.configure(schedule={"rounds": 2}, deadlines={"store_s": 2})
    services = [run.start("trainer"), run.start("rollout")]
    for service in services:
        assert service.finish() == 6, service.text()
        told = service.text()
        assert "waits for object store (" in told
        assert "ends: the object store stayed away: " in told
        assert "SlowDown" in told and "an answer within 2 s" in told and "deadlines.store_s" in told
        assert "Traceback" not in told
    assert "rejected" not in {row["state"] for row in run.reader.groups(0)}
    proxy.fault = lambda request: Fault.NONE
    run.complete()
    check_complete(run, rounds=2)
    assert {row["rejections"] for round in range(2) for row in run.reader.groups(round)} == {"0"}

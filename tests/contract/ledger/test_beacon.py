"""A service's heartbeat as others see it: that it lives, what it waits for, and that it lost its role."""

from __future__ import annotations

import pytest
import redis

from rolloutpipe_core.errors import DeadlineExceeded
from rolloutpipe_core.ledger.beacon import Beacon
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.local.process import until
from rolloutpipe_core.observe.status import ServiceStatus, service_status

from .conftest import HandRun, LossyProxy

HOUR_S = 3600.0


def seen(hand: HandRun) -> ServiceStatus | None:
    rows = hand.reader.services()
    return service_status(rows[0], hand.reader.server_time_ms()) if rows else None


def test_a_service_is_seen_while_it_lives_and_gone_when_it_leaves(hand: HandRun) -> None:
    beacon = Beacon(hand.client, "rollout", "rollout-0", heartbeat_s=0.02)
    beacon.doing("generating round 3")
    with beacon:
        assert until(lambda: seen(hand) is not None, 10)
        status = seen(hand)
        assert status is not None
        assert (status.name, status.role, status.doing) == ("rollout-0", "rollout", "generating round 3")
        assert (status.waiting_for, status.waiting_s, status.deadline_in_s) == ("", None, None)
        beacon.doing("loading v4")
        assert until(lambda: (now := seen(hand)) is not None and now.doing == "loading v4", 10)
    assert seen(hand) is None


def test_a_service_that_beats_no_more_is_gone_after_ten_missed_beats(hand: HandRun) -> None:
    """Killed: nothing says that it left. Expiry is the server's doing, so no clock is asserted but its limit."""
    Beacon(hand.client, "rollout", "rollout-0", heartbeat_s=0.02).beat()
    assert 0 < hand.client.redis.pttl(hand.client.keys.service("rollout-0")) <= 200  # type: ignore[operator]
    assert until(lambda: seen(hand) is None, 10)


def test_a_wait_is_shown_with_its_age_and_its_deadline_until_it_ends(hand: HandRun) -> None:
    beacon = Beacon(hand.client, "trainer", "trainer", HOUR_S)
    with beacon.waiting("the round to drain", HOUR_S):
        with beacon.waiting("weights v3", 60.0):
            beacon.beat()
            assert seen(hand).waiting_for == "weights v3"  # type: ignore[union-attr]
        beacon.beat()
        status = seen(hand)
        assert status is not None
        assert status.waiting_for == "the round to drain"
        assert status.waiting_s is not None and status.deadline_in_s is not None
        assert status.waiting_s + status.deadline_in_s == pytest.approx(HOUR_S, abs=0.01)
        assert status.waiting_s < HOUR_S / 2
    beacon.beat()
    assert seen(hand).waiting_for == ""  # type: ignore[union-attr]


def test_ages_are_the_servers_whatever_this_machines_clock_says(hand: HandRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    beacon = Beacon(hand.client, "trainer", "trainer", HOUR_S)
    with beacon.waiting("the round to drain", HOUR_S):
        beacon.beat()
    status = seen(hand)
    assert status is not None
    assert status.deadline_in_s is not None
    assert HOUR_S / 2 < status.deadline_in_s <= HOUR_S


def test_an_outage_of_the_store_hides_the_wait_that_it_lengthens(hand: HandRun) -> None:
    beacon = Beacon(hand.client, "trainer", "trainer", HOUR_S)
    with beacon.waiting("the round to drain", HOUR_S):
        for reason in ("object store (get a): 503", "object store (get a): refused"):
            beacon.outage(reason, 60.0)
            beacon.beat()
            status = seen(hand)
            assert status is not None
            assert status.waiting_for == reason
            assert status.deadline_in_s is not None and status.deadline_in_s <= 60
        beacon.outage("", 60.0)
        beacon.beat()
        assert seen(hand).waiting_for == "the round to drain"  # type: ignore[union-attr]


def test_a_wait_ends_with_its_deadline_and_says_what_for(hand: HandRun) -> None:
    beacon = Beacon(hand.client, "trainer", "trainer", HOUR_S)
    with beacon.waiting("the round to drain", 0.01) as wait:

        def too_late() -> bool:
            try:
                wait.check("no rollout worker is alive")
            except DeadlineExceeded as error:
                assert str(error).startswith("waited 0.01 s for the round to drain; given: no rollout worker is alive")
                assert error.exit_code == 3
                return True
            return False

        assert until(too_late, 10)


def test_a_trainer_that_only_waits_learns_that_it_was_fenced_off(hand: HandRun) -> None:
    first = hand.take_role()
    with Beacon(hand.client, "trainer", "trainer", heartbeat_s=0.02) as beacon:
        beacon.carry(first.epoch.number, first.epoch.nonce)
        assert until(lambda: seen(hand) is not None, 10)
        assert beacon.fenced is None
        second = hand.take_role()
        assert until(lambda: beacon.fenced is not None, 10)
        assert "held by 2 box:7" in str(beacon.fenced)
        beacon.carry(second.epoch.number, second.epoch.nonce)
        assert beacon.fenced is None


def test_it_beats_on_after_an_outage(
    lossy_client: redis.Redis, redis_client: redis.Redis, proxy: LossyProxy, run_name: str
) -> None:
    """Every second answer is lost, and a call gives up at once: the thread lives on."""
    hand = HandRun.prepare(redis_client, run_name)
    proxy.lossy = True
    impatient = LedgerClient(lossy_client, run_name, deadline_s=0.0)
    with Beacon(impatient, "rollout", "rollout-0", heartbeat_s=0.01) as beacon:
        assert until(lambda: proxy.lost >= 3, 10)
        beacon.doing("still there")
        assert until(lambda: (now := seen(hand)) is not None and now.doing == "still there", 10)

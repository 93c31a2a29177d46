"""Leases run on the server's clock: renewed, lost, reaped by anyone once, with a grace after a restart of Redis."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.errors import Fenced
from rolloutpipe_core.ledger.rollout import Lease, RolloutLedger

from .conftest import GROUPS, HandRun


def run_out(hand: HandRun, *leases: Lease) -> None:
    """As if their holder had stood still past their end."""
    server: Any = hand.client.redis
    for lease in leases:
        server.zadd(hand.client.keys.leases(0), {lease.group: 1}, xx=True)


def other(hand: HandRun, max_attempts: int = 3) -> RolloutLedger:
    """Another worker, without a grace after the server's start."""
    return RolloutLedger(hand.client, "other", 0, max_attempts)


def test_a_lease_that_ran_out_is_reaped_and_its_late_upload_loses(hand: HandRun) -> None:
    hand.open()
    lease = hand.admit(0)
    assert other(hand).reap(0) == [], "it still runs"
    run_out(hand, lease)
    assert other(hand).reap(0) == [(lease.group, GroupState.DEFERRED)]
    again = other(hand).admit(lease.group)
    assert again.attempt == 2
    for call in (
        lambda: hand.rollout.serving_complete(lease),
        lambda: hand.rollout.announce(lease, hand.reference(lease), 8, 5),
        lambda: hand.rollout.give_up(lease, "late"),
        lambda: hand.rollout.hand_back(lease, "late"),
    ):
        with pytest.raises(Fenced, match="held by 2 other"):
            call()
    assert hand.reader.group(lease.group)["state"] == GroupState.ADMITTED


def test_renewing_extends_a_lease_and_names_the_lost_ones(hand: HandRun) -> None:
    hand.open()
    kept, lost = hand.admit(0), hand.admit(1)
    run_out(hand, lost)
    other(hand).reap(0)
    run_out(hand, kept)
    assert hand.rollout.renew(0, [kept, lost]) == [lost.group]
    assert other(hand).reap(0) == []


def test_every_step_renews_the_lease(hand: HandRun) -> None:
    hand.open()
    lease = hand.admit(0)
    for step in (hand.rollout.serving_complete, hand.rollout.materialized):
        run_out(hand, lease)
        step(lease)
        assert other(hand).reap(0) == []


def test_a_worker_leaves_its_own_groups_to_its_renewals(hand: HandRun) -> None:
    hand.open()
    mine, lost = hand.admit(0), hand.admit(1)
    run_out(hand, mine, lost)
    assert other(hand).reap(0, own=[mine.group]) == [(lost.group, GroupState.DEFERRED)]


def test_the_last_attempt_that_runs_out_fails_the_group(hand: HandRun) -> None:
    hand.open()
    for index in range(GROUPS):
        run_out(hand, hand.admit(index))
    reaped = other(hand, max_attempts=1).reap(0)
    assert [outcome for _, outcome in reaped] == [GroupState.FAILED] * GROUPS
    assert hand.reader.group("r000000-g0000")["reason"] == "lease ran out (attempt 1 of 1)"
    assert hand.rollout.view(0).state == "drained"


@pytest.mark.parametrize("meanwhile", ["reaped", "renewed", "handed back"])
def test_a_reaper_that_comes_second_leaves_it_at_that(
    hand: HandRun, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look at the leases and its call, another worker reaps them or their holder wakes up."""
    hand.open()
    first, second = hand.admit(0), hand.admit(1)
    run_out(hand, first, second)
    reaper, look = other(hand), hand.client.server

    def overtaken() -> tuple[str, int]:
        match meanwhile:
            case "reaped":
                other(hand)._release(first.group, "", "lease ran out", 3)
            case "renewed":
                hand.rollout.renew(0, [first])
            case "handed back":
                hand.rollout.hand_back(first, "the worker stopped")
        return look()

    monkeypatch.setattr(hand.client, "server", overtaken)
    assert reaper.reap(0) == [(second.group, GroupState.DEFERRED)]


def test_after_a_restart_of_redis_nobody_is_reaped_for_one_leases_length(hand: HandRun) -> None:
    """The server of the tests has not been up for an hour."""
    hand.open()
    run_out(hand, hand.admit(0))
    assert hand.rollout.reap(0) == []
    assert len(other(hand).reap(0)) == 1

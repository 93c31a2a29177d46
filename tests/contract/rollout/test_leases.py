"""Workers that lose their leases or leave: what they did late counts for nothing, and others go on at once."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from rolloutpipe_components.rollout.engine import Engine
from rolloutpipe_components.rollout.leases import LeaseKeeper

from rolloutpipe_core.domain import Group, GroupState
from rolloutpipe_core.ledger.rollout import Lease, RolloutLedger

from .conftest import HoldingEngine, HoldingStore, MakeRig, R, Rig, StandingLedger


def same_samples(first: Group, second: Group) -> bool:
    """Token for token, and each log-probability to the bit."""
    pairs = zip(first.samples, second.samples, strict=True)
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for one, other in pairs
        for name in ("prompt_ids", "response_ids", "behavior_logprobs", "reward", "advantage")
    )


def test_a_late_upload_loses_and_the_second_attempt_repeats_the_first_to_the_token(make_rig: MakeRig) -> None:
    """The first worker stands still with all its groups sampled and scored, and wakes up when they are queued again."""
    rig = make_rig(deterministic=True, engine={"slots": 8}, leases={"lease_s": 1}, schedule={"frontier_width": R})
    store = HoldingStore(rig.store)

    async def scenario() -> None:
        async with rig.worker("slow", store=store, ledger=StandingLedger) as slow:
            await rig.until(lambda: rig.states() == [GroupState.MATERIALIZED] * R)
            async with rig.worker("fast") as fast:
                await rig.until(lambda: rig.round_is("drained"))
                announced = [rig.reader.group(f"r000000-g{index:04d}") for index in range(R)]
                store.go.set()
                await rig.until(lambda: len(store.put_keys) == R)
                rig.trainer.train()
                await asyncio.gather(slow.finish(), fast.finish())
        for index in range(R):
            first, second = rig.stored(index)
            assert (first.attempt, second.attempt) == (1, 2)
            assert same_samples(first, second)
            row = rig.reader.group(f"r000000-g{index:04d}")
            assert (row["state"], row["attempt"], row["worker"]) == ("trained", "2", "fast")
            assert (row["object"], row["entry"]) == (announced[index]["object"], announced[index]["entry"])
        assert len(rig.trainer.announced()) == 0
        assert rig.reader.fifo_depth() == 0, "one announcement a group and the drain marker, all acknowledged"

    asyncio.run(scenario())


def test_a_worker_whose_lease_is_lost_stops_that_attempt(make_rig: MakeRig) -> None:
    """Renewal tells it, from its own thread; the engine's answer is no longer waited for."""
    rig = make_rig(leases={"lease_s": 1})

    async def scenario() -> None:
        async with rig.worker(wrap=lambda engine: HoldingEngine(engine, [1])) as worker:
            await rig.until(lambda: worker.engine.holds == 1)
            worker.engine.groups.clear()
            rig.redis.zadd(rig.client.keys.leases(0), {"r000000-g0001": 1}, xx=True)
            assert rig.reap_as_another() == [("r000000-g0001", GroupState.DEFERRED)]
            await rig.until(lambda: rig.round_is("drained"))
            assert not worker.engine.go.is_set()
            rig.trainer.train()
            await worker.finish()

    asyncio.run(scenario())
    assert [row["attempt"] for row in rig.reader.groups(0)] == ["1", "2", "1", "1"]


def test_the_loss_of_an_old_lease_does_not_touch_the_attempt_after_it(rig: Rig) -> None:
    """The keeper hears of it late: by then the same worker serves the group again."""

    async def scenario() -> None:
        async with rig.worker(wrap=lambda engine: HoldingEngine(engine, [0])) as worker:
            await rig.until(lambda: worker.engine.holds == 1)
            (lease,) = [lease for lease in worker.service._leases.held if lease.group == "r000000-g0000"]
            before = Lease(lease.group, lease.worker, 0, "an old nonce")
            worker.service._cancel(before)
            worker.engine.go.set()
            await rig.until(lambda: rig.round_is("drained"))

    asyncio.run(scenario())
    assert [row["attempt"] for row in rig.reader.groups(0)] == ["1"] * R


def test_the_keeper_names_the_very_lease_that_was_lost(rig: Rig) -> None:
    ledger = RolloutLedger(rig.client, "w", 60, 4)
    lost: list[Lease] = []

    async def scenario() -> None:
        async with rig.worker(wrap=lambda engine: HoldingEngine(engine, range(R))):
            await rig.until(lambda: rig.states()[:2] == [GroupState.ADMITTED] * 2)

    asyncio.run(scenario())
    keeper = LeaseKeeper(ledger, 60, lost.append)
    first, second = ledger.admit("r000000-g0000"), ledger.admit("r000000-g0001")
    for lease in (first, second):
        keeper.hold(0, lease)
    ledger.give_up(second, "the engine broke")
    keeper.renew()
    assert lost == [second]
    keeper.drop(second)
    again = ledger.admit(second.group)
    keeper.hold(0, again)
    keeper.renew()
    assert lost == [second]
    assert keeper.held == [first, again]


def test_a_worker_that_is_told_to_stop_hands_its_groups_back_at_once(make_rig: MakeRig) -> None:
    """Not after the lease of an hour; and it costs them no attempt's failure."""
    rig = make_rig(schedule={"kind": "cgp"}, leases={"lease_s": 3600, "max_attempts": 1})

    def hold(engine: Engine) -> HoldingEngine:
        return HoldingEngine(engine, range(R))

    async def scenario() -> None:
        async with rig.worker("leaving", wrap=hold) as leaving:
            await rig.until(lambda: leaving.engine.holds == R)
            leaving.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving.finish()
            rows = rig.reader.groups(0)
            assert {(row["state"], row["reason"]) for row in rows} == {("deferred", "the worker stopped")}
            assert rig.redis.zcard(rig.client.keys.leases(0)) == 0
        async with rig.worker("staying") as staying:
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.train()
            await staying.finish()

    asyncio.run(scenario())
    assert {(row["state"], row["attempt"], row["worker"]) for row in rig.reader.groups(0)} == {
        ("trained", "2", "staying")
    }


def test_a_worker_that_leaves_in_the_midst_of_scoring_hands_back_what_is_served_too(
    make_rig: MakeRig, gate: object
) -> None:
    rig = make_rig(rewards={"verifier": "gated_verifier:verify"}, leases={"lease_s": 3600})
    (gate / "closed").touch()  # type: ignore[operator]

    async def scenario() -> None:
        async with rig.worker() as leaving:
            await rig.until(lambda: rig.states() == [GroupState.SERVING_COMPLETE] * R)
            leaving.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving.finish()
            assert rig.states() == [GroupState.DEFERRED] * R

    asyncio.run(scenario())
    assert rig.reader.open_groups(0) == [row["id"] for row in rig.reader.groups(0)]

"""Redis forgets, pauses or goes; the store is away; the run is stopped; no trainer comes; a worker's data differ."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from typing import Any

import pytest

from rolloutpipe_core.config.connections import S3Connection
from rolloutpipe_core.data.pointer_walk import pointer_walk_prompts
from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.errors import BadInput, DeadlineExceeded, LedgerRefused, RunStopped, StoreUnavailable
from rolloutpipe_core.ledger.beacon import Beacon
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.local.process import free_ports
from rolloutpipe_core.local.servers import LocalServers
from rolloutpipe_core.preparation import prepare_run
from rolloutpipe_core.store.objects import ObjectStore

from .conftest import HoldingEngine, HoldingStore, MakeRig, R, Rig


def forget(rig: Rig, *patterns: str) -> None:
    server: Any = rig.redis
    for pattern in patterns:
        server.delete(*server.scan_iter(rig.client.keys.prefix + pattern, count=1000))


def test_a_round_that_redis_lost_is_opened_again_and_served_whole(rig: Rig) -> None:
    """Group 0 is in the engine and the rest is announced; what the worker still holds is refused and done again."""

    async def scenario() -> None:
        async with rig.worker(wrap=lambda engine: HoldingEngine(engine, [0])) as worker:
            await rig.until(lambda: rig.states() == [GroupState.ADMITTED] + [GroupState.QUEUED] * (R - 1))
            forget(rig, "round:0*", "group:*")
            worker.engine.go.set()
            await rig.until(lambda: rig.round_is("drained"))
            check_cohort_kept(rig)
            rig.trainer.train()
            await worker.finish()

    asyncio.run(scenario())
    assert rig.states() == [GroupState.TRAINED] * R


def check_cohort_kept(rig: Rig) -> None:
    """What was opened again is the same cohort: the objects of a group's attempts answer the same prompt."""
    for index, row in enumerate(rig.reader.groups(0)):
        assert {group.prompt_id for group in rig.stored(index)} == {row["prompt"]}


def test_a_run_that_redis_lost_is_restored_and_its_round_opened_again(rig: Rig) -> None:
    async def scenario() -> None:
        async with rig.worker(wrap=lambda engine: HoldingEngine(engine, [0])) as worker:
            await rig.until(lambda: worker.engine.holds == 1)
            forget(rig, "*")
            worker.engine.go.set()
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer = type(rig.trainer)(rig)
            rig.trainer.train()
            await worker.finish()

    asyncio.run(scenario())
    assert rig.states() == [GroupState.TRAINED] * R
    assert rig.reader.run_state()["version"] == "1"


def test_a_run_that_redis_lost_after_the_commit_goes_on_with_the_next_round(make_rig: MakeRig) -> None:
    rig = make_rig(schedule={"rounds": 2})

    async def scenario() -> None:
        async with rig.worker() as worker:
            await rig.until(lambda: rig.round_is("drained"))
            first = rig.trainer.train().commit.version
            forget(rig, "*")
            await rig.until(lambda: rig.round_is("drained", 1))
            assert worker.engine.loaded[-1] == first
            rig.trainer = type(rig.trainer)(rig)
            rig.trainer.train(1)
            await worker.finish()

    asyncio.run(scenario())


def test_a_redis_that_went_back_a_version_is_followed_until_it_is_mended(make_rig: MakeRig) -> None:
    """It lost the publication of version 1 and the opening of round 1; the trainer publishes again."""
    rig = make_rig(schedule={"rounds": 2})
    genesis = rig.trainer.chain.genesis().commit.version

    async def scenario() -> None:
        async with rig.worker(wrap=lambda engine: HoldingEngine(engine, [])) as worker:
            await rig.until(lambda: rig.round_is("drained"))
            worker.engine.groups = set(range(R))
            link = rig.trainer.train()
            await rig.until(lambda: worker.engine.holds)
            go_back_to_the_trained_round(rig)
            await rig.until(lambda: len(worker.engine.loaded) == 3)
            worker.engine.groups.clear()
            rig.trainer.ledger.publish(link, "object")
            await rig.until(lambda: rig.round_is("drained", 1))
            assert worker.engine.loaded == [genesis, link.commit.version, genesis, link.commit.version]
            rig.trainer.train(1)
            await worker.finish()

    asyncio.run(scenario())
    assert rig.states(1) == [GroupState.TRAINED] * R


def go_back_to_the_trained_round(rig: Rig) -> None:
    server, keys, genesis = rig.redis, rig.client.keys, rig.trainer.chain.genesis().commit.version
    forget(rig, "round:1*", "group:r000001*")
    newest = server.xrevrange(keys.weights, count=1)[0][0]  # type: ignore[index]
    server.xdel(keys.weights, newest)
    server.hset(keys.round(0), "state", "trained")
    for row in rig.reader.groups(0):
        server.hset(keys.group(row["id"]), "state", "claimed")
    server.hset(keys.run, mapping={"version": 0, "version_sha": genesis.sha, "round": 0, "cursor": 0})


def test_a_redis_that_pauses_makes_nobody_lose_work(own_servers: LocalServers, make_rig: MakeRig) -> None:
    rig = make_rig(own_servers.connections.redis, schedule={"groups_per_round": 8})

    async def scenario() -> None:
        async with rig.worker() as worker:
            await rig.until(lambda: GroupState.QUEUED in rig.states())
            own_servers.redis.send(signal.SIGSTOP)
            resume = threading.Timer(2.5, own_servers.redis.send, [signal.SIGCONT])
            resume.start()
            await rig.until(lambda: rig.round_is("drained"))
            resume.join()
            rig.trainer.train()
            await worker.finish()

    asyncio.run(scenario())
    assert {(row["state"], row["attempt"]) for row in rig.reader.groups(0)} == {("trained", "1")}


def test_a_worker_that_leaves_while_redis_is_away_waits_for_one_deadline_only(
    own_servers: LocalServers, make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Not once for each group that it holds; their leases run out by themselves."""
    rig = make_rig(own_servers.connections.redis, schedule={"kind": "cgp"})
    impatient = LedgerClient(own_servers.connections.redis.client(), rig.config.run, 0.2)

    async def scenario() -> None:
        async with rig.worker(wrap=lambda engine: HoldingEngine(engine, range(R)), client=impatient) as worker:
            await rig.until(lambda: worker.engine.holds == R)
            own_servers.redis.kill()
            worker.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await worker.finish()

    with caplog.at_level(logging.WARNING, logger="rolloutpipe.rollout"):
        asyncio.run(scenario())
    told = [record.getMessage() for record in caplog.records if "not handed back" in record.getMessage()]
    assert len(told) == 1
    assert "their leases run out: Redis stayed away for 0.2 s" in told[0]


class UploadsAway(HoldingStore):
    """Uploads go where nobody listens."""

    def put(self, key: str, data: bytes) -> None:
        (port,) = free_ports(1)
        client = S3Connection(f"http://127.0.0.1:{port}", "us-east-1", "key", "secret").client()
        ObjectStore(client, "nowhere", deadline_s=0.2).put(key, data)


def test_a_store_that_stays_away_ends_the_worker_which_hands_its_groups_back(rig: Rig) -> None:
    async def scenario() -> None:
        async with rig.worker(store=UploadsAway(rig.store)) as worker:
            await worker.finish()

    with pytest.raises(StoreUnavailable, match="stayed away: put runs/") as caught:
        asyncio.run(scenario())
    assert caught.value.exit_code == 6
    assert rig.states() == [GroupState.DEFERRED] * R
    assert rig.redis.zcard(rig.client.keys.leases(0)) == 0


def test_a_stopped_run_ends_the_worker_with_its_reason(rig: Rig) -> None:
    async def scenario() -> None:
        async with rig.worker() as worker:
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.ledger.stop("round 0: 3 of 4 groups ended unused")
            await worker.finish()

    with pytest.raises(RunStopped, match="was stopped; given: round 0: 3 of 4 groups ended unused") as caught:
        asyncio.run(scenario())
    assert caught.value.exit_code == 5


def test_a_worker_does_not_start_on_a_stopped_run(rig: Rig) -> None:
    rig.trainer.ledger.stop("enough")

    async def scenario() -> None:
        async with rig.worker() as worker:
            await worker.finish()

    with pytest.raises(RunStopped, match="enough"):
        asyncio.run(scenario())
    assert rig.reader.round_state(0) == {}


@pytest.mark.parametrize("trainer_lives", [True, False])
def test_a_version_that_does_not_come_is_missed_within_its_deadline(make_rig: MakeRig, trainer_lives: bool) -> None:
    rig = make_rig(deadlines={"publish_s": 0.5})
    trainer = Beacon(rig.client, "trainer", "trainer-7", 60)
    trainer.doing("training round 0, update 1")

    async def scenario() -> None:
        async with rig.worker() as worker:
            with trainer.waiting("2 ready groups", 60):
                if trainer_lives:
                    trainer.beat()
                await worker.finish()

    with pytest.raises(
        DeadlineExceeded, match=r"waited 0\.5 s for version 1: the trainer has all of round 0"
    ) as caught:
        asyncio.run(scenario())
    alive = "trainer-7 is training round 0, update 1, waits for 2 ready groups"
    assert caught.value.given == (alive if trainer_lives else "no trainer is alive")
    assert caught.value.exit_code == 3


def test_a_worker_with_other_data_refuses_to_serve(rig: Rig) -> None:
    """Where it could not compare with the genesis, the round's opening tells."""
    other = pointer_walk_prompts(seed=99, rows=1000)

    async def scenario() -> None:
        async with rig.worker() as first:
            await rig.until(lambda: rig.round_is("drained"))
            async with rig.worker("worker-1", prompts=other) as second:
                await second.finish()
            assert not first.task.done()

    with pytest.raises(LedgerRefused, match="this worker's data differ") as caught:
        asyncio.run(scenario())
    assert other.fingerprint[:12] in caught.value.given
    assert rig.prompts.fingerprint[:12] in caught.value.given


def test_other_data_are_refused_when_the_run_is_prepared(rig: Rig) -> None:
    other = pointer_walk_prompts(seed=99, rows=1000)
    with pytest.raises(BadInput, match="made with other data") as caught:
        prepare_run(rig.config, rig.model, other.fingerprint, rig.store)
    assert other.fingerprint[:16] in str(caught.value)
    assert rig.prompts.fingerprint[:16] in str(caught.value)

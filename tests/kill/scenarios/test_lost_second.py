"""Redis restarts without its last writes, at several instants; services live on meanwhile, or are started again.

Nothing that was committed is trained again, nothing that was announced is left out, and the run goes on to its end.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rolloutpipe_core.config.connections import RedisConnection
from rolloutpipe_core.domain import GroupState, group_id
from rolloutpipe_core.errors import Fenced
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.events import RoleTaken
from rolloutpipe_core.ledger.rollout import RolloutLedger
from rolloutpipe_core.local.servers import LocalServers
from rolloutpipe_core.local.valkey import start_valkey
from rolloutpipe_core.observe.audit import audit_run
from rolloutpipe_core.store.objects import ObjectStore

from ...contract.trainer.conftest import Bench, K, R, make_bench, make_config
from .aof import ForgetfulValkey
from .conftest import Run, StandingClient, StandingStore, check_complete, commits

Told = Mapping[str, str]


def event(**fields: str) -> Callable[[Told], bool]:
    return lambda told: fields.items() <= told.items()


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[ForgetfulValkey]:
    password = secrets.token_hex(8)
    data, log = tmp_path / "valkey", tmp_path / "valkey.log"
    redis = ForgetfulValkey(start_valkey(data, log, password, die_with_parent=True), data, log, password)
    yield redis
    redis.server.kill()


@pytest.fixture
def connection(forgetful: ForgetfulValkey) -> RedisConnection:
    return RedisConnection(nodes=(("127.0.0.1", forgetful.server.port),), password=forgetful.password)


@pytest.fixture
def bench(
    request: pytest.FixtureRequest,
    connection: RedisConnection,
    object_store: ObjectStore,
    run_name: str,
    tiny_model: Path,
    tmp_path: Path,
) -> Iterator[Bench]:
    """Rollout by hand on the forgetful server; `indirect` parameters change the schedule."""
    client = connection.client()
    config = make_config(run_name, tiny_model, **getattr(request, "param", {}))
    yield make_bench(config, client, object_store, tiny_model, tmp_path / "cache")
    client.close()


def state(bench: Bench, index: int) -> str:
    return bench.reader.group(group_id(0, index))["state"]


def check_audit(bench: Bench) -> None:
    assert {row["state"] for row in bench.reader.groups(0)} == {GroupState.TRAINED}
    (commit,) = commits(bench)
    assert sorted(group.group for group in commit.groups) == [group_id(0, index) for index in range(R)]
    audit = audit_run(bench.reader, bench.store)
    assert audit.passed, audit.findings


def roles(bench: Bench) -> list[int]:
    return [event.epoch for event in bench.reader.events() if isinstance(event, RoleTaken)]


def test_a_trainer_whose_role_was_lost_takes_it_again(bench: Bench, forgetful: ForgetfulValkey) -> None:
    """Under the same number, with another nonce; what it had assigned is assigned again."""
    bench.rollout.open()
    bench.rollout.serve(0)
    trainer = bench.start_trainer()
    trainer.wait_for(lambda: state(bench, 0) == GroupState.CLAIMED)
    forgetful.lose_from(event(type="role"))
    trainer.wait_for(lambda: roles(bench) == [1])
    bench.rollout.serve(1)
    bench.rollout.serve(2)
    trainer.finish()
    assert commits(bench)[0].trainer_epoch.nonce == bench.reader.run_state()["trainer_nonce"]
    check_audit(bench)


def test_of_two_trainers_with_the_same_epoch_the_one_that_redis_knows_goes_on(
    bench: Bench, forgetful: ForgetfulValkey, connection: RedisConnection
) -> None:
    """The first stands still while its role is lost, and the second is given the same number."""
    client = connection.client()
    standing = StandingClient(client, bench.config.run, 20)
    bench.rollout.open()
    bench.rollout.serve(0)
    bench.rollout.serve(1)
    standing.stop_at = "seal"
    first = bench.start_trainer(client=standing)
    assert standing.stands.wait(60)
    forgetful.lose_from(event(type="role"))
    second = bench.start_trainer()
    second.wait_for(lambda: state(bench, 1) == GroupState.CLAIMED)
    standing.wake()
    with pytest.raises(Fenced, match="another trainer took over"):
        first.finish(60)
    bench.rollout.serve(2)
    second.finish()
    assert roles(bench) == [1]
    check_audit(bench)
    client.close()


def test_a_commit_holds_though_redis_lost_the_announcement_and_had_it_made_again(
    bench: Bench, forgetful: ForgetfulValkey, s3_client: Any
) -> None:
    """The trainer has the whole round and is about to commit; the group is served again meanwhile, for nothing."""
    store = StandingStore(s3_client, bench.config.bucket)
    bench.rollout.open()
    trainer = bench.start_trainer(objects=store)
    trainer.wait_for(lambda: roles(bench) == [1])  # before what is lost
    with short_leases(bench):
        for index in range(R):
            bench.rollout.serve(index)
    assert store.stands.wait(60)
    lose_announcement(bench, forgetful, R - 1)
    bench.rollout.serve(R - 1)
    trainer.wait_for(lambda: bench.reader.fifo_depth() == len(bench.reader.pending()) > R)  # it has read all again
    store.go.set()
    trainer.finish()
    assert {group.attempt for group in commits(bench)[0].groups} == {1}
    assert bench.reader.pending() == [] and bench.reader.fifo_depth() == 0
    check_audit(bench)


@contextmanager
def short_leases(bench: Bench) -> Iterator[None]:
    """Leases of a millisecond."""
    long = bench.rollout.ledger
    bench.rollout.ledger = RolloutLedger(long.client, "hand", 0.001, 4)
    yield
    bench.rollout.ledger = long


def lose_announcement(bench: Bench, forgetful: ForgetfulValkey, index: int) -> None:
    """And all after it; the group's lease, which is a short one again, then ends."""
    forgetful.lose_from(event(type="group", to="queued", group=group_id(0, index)))
    while not RolloutLedger(bench.rollout.ledger.client, "reaper", 0, 4).reap(0):
        pass  # a millisecond


@pytest.mark.parametrize("bench", [{"update_batch_size": R * K}], indirect=True)
def test_a_drained_round_that_redis_forgot_closes_no_update(
    bench: Bench, forgetful: ForgetfulValkey, connection: RedisConnection
) -> None:
    """The trainer has read that nothing more comes, and learns of the last group only after Redis forgot it."""
    client = connection.client()
    standing = StandingClient(client, bench.config.run, 20)
    standing.stop_at = f"HMGET of {group_id(0, R - 1)}"
    bench.rollout.open()
    trainer = bench.start_trainer(client=standing)
    trainer.wait_for(lambda: roles(bench) == [1])  # before what is lost
    with short_leases(bench):
        for index in range(R):
            bench.rollout.serve(index)
    assert standing.stands.wait(60)
    lose_announcement(bench, forgetful, R - 1)
    standing.wake()
    trainer.wait_for(lambda: state(bench, 1) == GroupState.CLAIMED)
    bench.rollout.serve(R - 1)
    trainer.finish()
    assert [update.index for update in commits(bench)[0].updates] == [0]
    check_audit(bench)
    client.close()


ANNOUNCED = {"type": "group", "to": "queued", "round": "0"}
ASSIGNED = {"type": "group", "to": "claimed", "round": "1"}
SEALED = {"type": "sealed", "round": "2"}
PUBLISHED = {"type": "version", "number": "4"}
ROUNDS = 5


def test_services_that_live_through_lost_seconds_complete_their_run(own_run: Run, own_servers: LocalServers) -> None:
    """Five rounds, and in each another kind of write is lost; then the last version, when both have ended."""
    run, state = own_run, own_servers.directory / ".rolloutpipe"
    password = str(own_servers.connections.redis.password)
    valkey = ForgetfulValkey(own_servers.redis, state / "valkey", state / "logs" / "valkey.log", password)
    ledger = LedgerClient(own_servers.connections.redis.client(), run.name, 20.0)
    run.configure(schedule={"rounds": ROUNDS}, leases={"lease_s": 2, "heartbeat_s": 0.2})
    services = [run.start("trainer"), run.start("rollout")]
    for lost in (ANNOUNCED, ASSIGNED, SEALED, PUBLISHED):
        run.wait_for(lambda lost=lost: happened(ledger, lost))
        assert valkey.lose_from(event(**lost)) > 0
    for service in services:
        service.succeed()
    assert "starting over from the last commit" in services[0].text()
    check_complete(run, ROUNDS, redis_lost=True)

    valkey.lose_from(event(type="version", number=str(ROUNDS)))
    assert run.reader.run_state()["version"] == str(ROUNDS - 1)
    run.configure(schedule={"rounds": ROUNDS + 1}, leases={"lease_s": 2}).complete()
    check_complete(run, ROUNDS + 1, redis_lost=True)
    ledger.redis.close()


def happened(ledger: LedgerClient, told: Told) -> bool:
    """Whether the ledger tells of it, among its newest events."""
    newest: Any = ledger.patiently(lambda: ledger.redis.xrevrange(ledger.keys.ledger, count=100), "the ledger")
    return any(told.items() <= fields.items() for _, fields in newest)

"""The trainer service against real servers: resume, fencing, commits, outages, deadlines."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from rolloutpipe_core.domain import GroupState, group_id
from rolloutpipe_core.errors import DeadlineExceeded, Fenced
from rolloutpipe_core.ledger.events import UpdateStepped
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.local.servers import LocalServers
from rolloutpipe_core.store.commits import Commit, TrainerEpoch
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.weights import publish_weights, weights_prefix

from .conftest import Bench, R, make_bench, make_config

ALL = [(group_id(0, index), 1) for index in range(R)]


def head_commit(bench: Bench) -> Commit:
    head = bench.chain.head()
    assert head is not None
    assert isinstance(head.commit, Commit)
    return head.commit


def states(bench: Bench) -> list[str]:
    return [row["state"] for row in bench.reader.groups(0)]


def one_is_ready(bench: Bench) -> bool:
    """Two groups announced at once may be fetched in either order."""
    return any("(1 are ready" in row["waiting_for"] for row in bench.reader.services())


@pytest.mark.parametrize("bench", [{"update_batch_size": 4}], indirect=True)
def test_a_round_becomes_a_commit_and_a_version(bench: Bench) -> None:
    bench.rollout.open()
    trainer = bench.start_trainer()
    bench.rollout.serve(2)
    trainer.wait_for(lambda: one_is_ready(bench))
    bench.rollout.serve(0)
    trainer.wait_for(lambda: states(bench).count(GroupState.CLAIMED) == 2)
    bench.rollout.serve(1)
    trainer.finish()
    commit = head_commit(bench)
    members = [[member.group for member in update.groups] for update in commit.updates]
    assert members == [[group_id(0, 2), group_id(0, 0)], [group_id(0, 1)]], "U = 2 in order of completion, last partial"
    version, entry = bench.reader.versions()[-1]
    assert version == commit.version
    assert (version.number, entry["commit"]) == (1, commit.key)
    assert states(bench) == ["trained"] * R
    assert bench.reader.pending() == []
    assert bench.reader.fifo_depth() == 0


@pytest.mark.parametrize("bench", [{"update_batch_size": 4}], indirect=True)
def test_a_trainer_stopped_within_a_round_replays_the_recorded_assignments(bench: Bench) -> None:
    """The second incarnation goes on with update 0's member and place 1; it neither repeats nor loses a group."""
    bench.rollout.open()
    bench.rollout.serve(2)
    bench.rollout.serve(0)
    ledger = TrainerLedger.take_role(bench.rollout.ledger.client, "first", 0)
    first, second = ledger.read("0-0")
    ledger.assign(second.ref, 0, 0)  # type: ignore[union-attr]  # it died after this, before accumulating
    trainer = bench.start_trainer()
    trainer.wait_for(lambda: states(bench).count(GroupState.CLAIMED) == 2)
    bench.rollout.serve(1)
    trainer.finish()
    members = [[member.group for member in update.groups] for update in head_commit(bench).updates]
    assert members == [[group_id(0, 0), group_id(0, 2)], [group_id(0, 1)]]
    assert first.ref.group == group_id(0, 2)  # type: ignore[union-attr]
    assert sorted(trainer.accumulated) == ALL


@pytest.mark.parametrize("bench", [{"update_batch_size": 4}], indirect=True)
def test_a_sealed_update_is_stepped_again_as_recorded(bench: Bench) -> None:
    bench.rollout.open()
    for index in (1, 2, 0):
        bench.rollout.serve(index)
    ledger = TrainerLedger.take_role(bench.rollout.ledger.client, "first", 0)
    first, second = (entry.ref for entry in ledger.read("0-0")[:2])  # type: ignore[union-attr]
    for place, ref in enumerate((second, first)):
        ledger.assign(ref, 0, place)
    ledger.seal(0, 0, 2, first.samples + second.samples, first.tokens + second.tokens)
    bench.start_trainer().finish()
    updates = head_commit(bench).updates
    assert [[member.group for member in update.groups] for update in updates] == [
        [group_id(0, 2), group_id(0, 1)],
        [group_id(0, 0)],
    ]
    steps = [event for event in bench.reader.events() if isinstance(event, UpdateStepped)]
    assert [(step.update, step.replay) for step in steps] == [(0, True), (1, False)]


def test_a_recorded_assignment_whose_object_is_gone_is_taken_back_and_served_again(bench: Bench) -> None:
    bench.rollout.open()
    for index in range(R):
        bench.rollout.serve(index)
    ledger = TrainerLedger.take_role(bench.rollout.ledger.client, "first", 0)
    for place, entry in enumerate(ledger.read("0-0")[:2]):
        ledger.assign(entry.ref, place, 0)  # type: ignore[union-attr]
        ledger.seal(0, place, 1, entry.ref.samples, entry.ref.tokens)  # type: ignore[union-attr]
    lost = bench.reader.group(group_id(0, 0))
    bench.store.delete(lost["object"])
    trainer = bench.start_trainer()
    trainer.wait_for(lambda: bench.reader.group(group_id(0, 0))["state"] == GroupState.DEFERRED)
    assert "missing object" in bench.reader.group(group_id(0, 0))["reason"]
    bench.rollout.serve(0)
    trainer.finish()
    commit = head_commit(bench)
    assert sorted((member.group, member.attempt) for member in commit.groups) == [
        (group_id(0, 0), 2),
        (group_id(0, 1), 1),
        (group_id(0, 2), 1),
    ]


def test_a_second_trainer_fences_the_first_off(bench: Bench) -> None:
    bench.rollout.open()
    first = bench.start_trainer()
    bench.rollout.serve(0)
    first.wait_for(lambda: states(bench)[0] == GroupState.CLAIMED)
    second = bench.start_trainer()
    with pytest.raises(Fenced):
        first.finish()
    bench.rollout.serve(1)
    bench.rollout.serve(2)
    second.finish()
    assert sorted(second.accumulated) == ALL, "the successor replays what the first had accumulated"
    assert head_commit(bench).trainer_epoch.number == 2


def test_a_commit_of_a_predecessor_that_was_under_way_wins_and_is_adopted(bench: Bench, tiny_model: Path) -> None:
    """The first trainer's commit lands while the second trains the same round: the second takes it over."""
    bench.rollout.open()
    for index in range(R - 1):
        bench.rollout.serve(index)
    trainer = bench.start_trainer()
    trainer.wait_for(lambda: states(bench).count(GroupState.CLAIMED) == R - 1)
    genesis = bench.chain.head()
    assert genesis is not None
    sha = publish_weights(bench.store, bench.config.run, tiny_model).manifest_sha
    facts = genesis.commit.model_dump(exclude={"weights_sha"})
    epoch = TrainerEpoch(number=1, nonce="predecessor")
    foreign = Commit(
        **facts, weights_sha=sha, previous=genesis.as_previous, trainer_epoch=epoch, round=0, updates=(), ended=(),
        cohort_sha="c" * 64, cursor=R, checkpoint=None,
    )  # fmt: skip
    bench.chain.append(foreign)
    bench.rollout.serve(R - 1)
    trainer.finish()
    assert head_commit(bench).trainer_epoch.nonce == "predecessor"
    version, entry = bench.reader.versions()[-1]
    assert version == foreign.version
    assert entry["object"] == weights_prefix(bench.config.run, sha)


@pytest.mark.parametrize("bench", [{"rounds": 2}], indirect=True)
def test_a_published_commit_that_redis_has_not_heard_of_is_applied_at_the_start(bench: Bench) -> None:
    """The trainer died between its commit and telling Redis; or Redis lost its last second."""
    bench.rollout.open()
    for index in range(R):
        bench.rollout.serve(index)
    one_round = bench.config.model_copy(update={"schedule": bench.config.schedule.model_copy(update={"rounds": 1})})
    client = bench.rollout.ledger.client
    bench.start_trainer(one_round).finish()
    commit = head_commit(bench)
    # Redis forgets the publication: the run is back at version 0, the groups are claimed again.
    client.redis.hset(client.keys.run, mapping={"version": 0, "version_sha": bench.rollout.version.sha})
    client.redis.hset(client.keys.round(0), "state", "trained")
    for member in commit.groups:
        client.redis.hset(client.keys.group(member.group), "state", "claimed")
    trainer = bench.start_trainer()
    trainer.wait_for(lambda: bench.reader.run_state()["version"] == "1")
    trainer.wait_for(lambda: states(bench) == ["trained"] * R)
    bench.rollout.version = commit.version
    bench.rollout.open(1)
    for index in range(R):
        bench.rollout.serve(index, 1)
    trainer.finish()
    assert head_commit(bench).round == 1


@pytest.mark.parametrize("bench", [{"rounds": 2}], indirect=True)
def test_a_redis_that_forgets_a_version_while_the_trainer_waits_hears_of_it_again(bench: Bench) -> None:
    bench.rollout.open()
    trainer = bench.start_trainer()
    for index in range(R):
        bench.rollout.serve(index)
    trainer.wait_for(lambda: trainer.published())
    client: Any = bench.rollout.ledger.client.redis
    keys = bench.rollout.ledger.client.keys
    client.hset(keys.run, mapping={"version": 0, "version_sha": bench.rollout.version.sha})
    client.xtrim(keys.weights, maxlen=0)
    trainer.wait_for(lambda: bench.reader.run_state()["version"] == "1")
    trainer.wait_for(lambda: [version for version, _ in bench.reader.versions()] == [head_commit(bench).version])
    bench.rollout.version = head_commit(bench).version
    bench.rollout.open(1)
    for index in range(R):
        bench.rollout.serve(index, 1)
    trainer.finish()
    assert head_commit(bench).round == 1


@pytest.mark.parametrize("bench", [{"rounds": 2}], indirect=True)
def test_a_redis_that_forgets_the_run_while_the_trainer_waits_gets_it_back(bench: Bench) -> None:
    bench.rollout.open()
    trainer = bench.start_trainer()
    for index in range(R):
        bench.rollout.serve(index)
    trainer.wait_for(lambda: trainer.published())
    client: Any = bench.rollout.ledger.client.redis
    client.delete(*client.scan_iter(f"{bench.rollout.ledger.client.keys.prefix}*", count=1000))
    trainer.wait_for(lambda: bench.reader.run_state().get("version") == "1")
    bench.rollout.version = head_commit(bench).version
    bench.rollout.open(1)
    for index in range(R):
        bench.rollout.serve(index, 1)
    trainer.finish()
    assert head_commit(bench).round == 1


@pytest.mark.parametrize("bench", [{"max_unusable_fraction": 1.0, "zero_variance": "drop"}], indirect=True)
def test_a_round_without_usable_groups_publishes_the_same_weights_under_the_next_number(bench: Bench) -> None:
    bench.rollout.open()
    for index in range(R):
        lease = bench.rollout.admit(index)
        bench.rollout.ledger.serving_complete(lease)
        bench.rollout.ledger.materialized(lease)
        bench.rollout.ledger.filtered(lease, "zero variance of rewards", {"reward_mean": 1.0})
    bench.start_trainer().finish()
    commit = head_commit(bench)
    assert commit.updates == ()
    assert commit.version == (1, bench.rollout.version.sha)
    assert {end.reason for end in commit.ended} == {"zero variance of rewards"}


@pytest.mark.parametrize("bench", [{"order": "submission"}], indirect=True)
def test_submission_order_waits_for_the_head_and_skips_a_group_that_ended(bench: Bench) -> None:
    bench.rollout.open()
    trainer = bench.start_trainer()
    bench.rollout.serve(2)
    bench.rollout.serve(1)
    trainer.wait_for(lambda: any("group 0 heads the line" in row["waiting_for"] for row in bench.reader.services()))
    lease = bench.rollout.admit(0)
    bench.rollout.ledger.serving_complete(lease)
    bench.rollout.ledger.materialized(lease)
    bench.rollout.ledger.filtered(lease, "zero variance of rewards", {})
    trainer.finish()
    assert [member.group for member in head_commit(bench).groups] == [group_id(0, 1), group_id(0, 2)]


def test_a_trainer_without_rollout_says_so_within_its_deadline(bench: Bench) -> None:
    deadlines = bench.config.deadlines.model_copy(update={"group_s": 0.5})
    trainer = bench.start_trainer(bench.config.model_copy(update={"deadlines": deadlines}))
    with pytest.raises(DeadlineExceeded, match=r"waited 0\.5 s for round 0.*no rollout worker is alive"):
        trainer.finish()


@pytest.mark.parametrize("server", ["s3", "redis"])
def test_an_outage_rejects_nothing(
    server: str, own_servers: LocalServers, run_name: str, tiny_model: Path, tmp_path: Path
) -> None:
    """Frozen for three seconds while groups are on their way in both directions."""
    bench = own_bench(own_servers, run_name, tiny_model, tmp_path)
    bench.rollout.open()
    trainer = bench.start_trainer()
    bench.rollout.serve(0)
    trainer.wait_for(lambda: states(bench)[0] == GroupState.CLAIMED)
    bench.rollout.serve(1)
    frozen = getattr(own_servers, server)
    frozen.send(signal.SIGSTOP)
    resume = threading.Timer(3.0, frozen.send, [signal.SIGCONT])
    resume.start()
    bench.rollout.serve(2)  # waits for the server itself
    trainer.finish()
    resume.join()
    assert sorted(trainer.accumulated) == ALL
    assert all(row["rejections"] == "0" and row["attempt"] == "1" for row in bench.reader.groups(0))


def own_bench(servers: LocalServers, run: str, model: Path, tmp_path: Path) -> Bench:
    connections = servers.connections
    config = make_config(run, model)
    store = ObjectStore(connections.s3.client(read_timeout_s=1.0), config.bucket, config.deadlines.store_s)
    store.ensure_bucket()
    return make_bench(config, connections.redis.client(), store, model, tmp_path / "cache")

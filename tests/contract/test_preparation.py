"""A run is made once, by whoever comes first, and goes on only as what it was made as."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import WeightVersion
from rolloutpipe_core.errors import BadInput, StoreRefused
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.events import RunMoved
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.preparation import (
    check_belongs,
    check_not_ahead,
    missing_commits,
    prepare_run,
    register_run,
)
from rolloutpipe_core.store.commits import Commit, CommitChain, Genesis, Link, TrainerEpoch
from rolloutpipe_core.store.objects import ObjectStore

DATA, OTHER_DATA = "d" * 64, "e" * 64


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def config(run_name: str) -> RunConfig:
    return make_config(run_name)


def make_config(run: str, **changes: Any) -> RunConfig:
    return RunConfig.model_validate({"run": run, "model": {"path": "builtin:pointer-walk"}, **changes})


def test_the_first_prepares_and_a_second_finds_it_so(config: RunConfig, model: Path, object_store: ObjectStore) -> None:
    head = prepare_run(config, model, DATA, object_store)
    genesis = head.commit
    assert isinstance(genesis, Genesis)
    assert (genesis.run, genesis.lineage, genesis.data_fingerprint) == (config.run, 1, DATA)
    assert genesis.version == WeightVersion(0, genesis.weights_sha)
    stored = sorted(info.key.removeprefix(f"runs/{config.run}/") for info in object_store.list(f"runs/{config.run}/"))
    folder = f"weights/{genesis.weights_sha[:16]}"
    files = [f"{folder}/{name}" for name in ("config.json", "manifest.json", "model.safetensors")]
    assert stored == ["commits/genesis.json", "config.json", *files]
    assert RunConfig.model_validate_json(object_store.get(f"runs/{config.run}/config.json")) == config
    assert prepare_run(config, model, DATA, object_store) == head


def test_two_that_prepare_at_once_make_one_run(config: RunConfig, model: Path, object_store: ObjectStore) -> None:
    with ThreadPoolExecutor(4) as pool:
        heads = list(pool.map(lambda _: prepare_run(config, model, DATA, object_store), range(4)))
    assert all(head == heads[0] for head in heads)
    assert CommitChain(object_store, config.run).read() == [heads[0]]


def test_of_two_with_different_data_one_is_refused(config: RunConfig, model: Path, object_store: ObjectStore) -> None:
    def prepare(data: str) -> Link | BadInput:
        try:
            return prepare_run(config, model, data, object_store)
        except BadInput as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(prepare, (DATA, OTHER_DATA)))
    (refused,) = [outcome for outcome in outcomes if isinstance(outcome, BadInput)]
    assert DATA[:16] in str(refused)
    assert OTHER_DATA[:16] in str(refused)


def test_another_configuration_is_refused_and_its_keys_named(
    config: RunConfig, model: Path, object_store: ObjectStore
) -> None:
    prepare_run(config, model, DATA, object_store)
    other = make_config(config.run, sampling={"temperature": 0.5}, schedule={"rounds": 3, "samples_per_group": 4})
    with pytest.raises(BadInput) as caught:
        prepare_run(other, model, DATA, object_store)
    assert "sampling.temperature: was 1.0, now 0.5" in caught.value.given
    assert "schedule.samples_per_group: was 8, now 4" in caught.value.given
    assert "rounds" not in caught.value.given, "more rounds are no other run"


def test_a_configuration_of_another_version_is_named(config: RunConfig, model: Path, object_store: ObjectStore) -> None:
    object_store.put(f"runs/{config.run}/config.json", b'{"run": "walk", "model": {"path": "x"}, "optimiser": {}}')
    with pytest.raises(BadInput, match=r"does not understand.*config\.json.*optimiser"):
        prepare_run(config, model, DATA, object_store)


def test_what_may_change_between_two_starts_does(config: RunConfig, model: Path, object_store: ObjectStore) -> None:
    head = prepare_run(config, model, DATA, object_store)
    changes = {"schedule": {"rounds": 80, "kind": "stream"}, "engine": {"slots": 8}, "deadlines": {"group_s": 5}}
    assert prepare_run(make_config(config.run, **changes), model, DATA, object_store) == head


def test_other_data_are_refused_with_both_fingerprints(
    config: RunConfig, model: Path, object_store: ObjectStore
) -> None:
    prepare_run(config, model, DATA, object_store)
    with pytest.raises(BadInput, match="made with other data") as caught:
        prepare_run(config, model, OTHER_DATA, object_store)
    assert (caught.value.given, caught.value.expected) == (f"data fingerprint {OTHER_DATA[:16]}", DATA[:16])


def test_a_trainer_with_another_configuration_is_refused(
    config: RunConfig, model: Path, object_store: ObjectStore
) -> None:
    """It does not prepare; it compares with the chain alone."""
    head = prepare_run(config, model, DATA, object_store)
    check_belongs(config, head)
    with pytest.raises(BadInput, match=r"another configuration.*config\.json"):
        check_belongs(make_config(config.run, loss={"clip_low": 0.1}), head)


def next_commit(head: Link, sha: str) -> Commit:
    facts = head.commit.model_dump(include={"run", "lineage", "data_fingerprint", "config_sha"})
    return Commit(
        **facts,
        weights_sha=sha,
        previous=head.as_previous,
        trainer_epoch=TrainerEpoch(number=1, nonce="n"),
        round=head.next_round,
        updates=(),
        ended=(),
        cohort_sha="0" * 64,
        cursor=16,
        checkpoint=None,
    )


def test_redis_gets_the_head_and_hears_of_missing_commits_in_order(
    config: RunConfig, model: Path, object_store: ObjectStore, redis_client: redis.Redis
) -> None:
    client, reader = LedgerClient(redis_client, config.run, 10), LedgerReader(redis_client, config.run)
    genesis = prepare_run(config, model, DATA, object_store)
    for _ in range(2):
        register_run(client, genesis, "worker")
    assert [version for version, _ in reader.versions()] == [genesis.commit.version]
    assert [event.after for event in reader.events() if isinstance(event, RunMoved)] == ["prepared"]
    chain = CommitChain(object_store, config.run)
    assert missing_commits(chain, reader, genesis) == []
    first = chain.append(next_commit(genesis, "1" * 64))
    second = chain.append(next_commit(first, "2" * 64))
    register_run(client, second, "trainer")
    assert missing_commits(chain, reader, second) == [first, second]
    trainer = TrainerLedger.take_role(client, "box", 0)
    trainer.publish(first, "object")
    assert missing_commits(chain, reader, second) == [second]


def test_an_empty_redis_gets_the_run_as_the_chain_left_it(
    config: RunConfig, model: Path, object_store: ObjectStore, redis_client: redis.Redis
) -> None:
    client, reader = LedgerClient(redis_client, config.run, 10), LedgerReader(redis_client, config.run)
    genesis = prepare_run(config, model, DATA, object_store)
    head = CommitChain(object_store, config.run).append(next_commit(genesis, "1" * 64))
    assert prepare_run(config, model, DATA, object_store) == head
    register_run(client, head, "worker")
    assert reader.run_state()["version"] == "1"
    assert [version for version, _ in reader.versions()] == [WeightVersion(1, "1" * 64)]
    assert [event.after for event in reader.events() if isinstance(event, RunMoved)] == ["restored"]
    assert missing_commits(CommitChain(object_store, config.run), reader, head) == []


def test_a_redis_ahead_of_the_chain_is_refused(
    config: RunConfig, model: Path, object_store: ObjectStore, redis_client: redis.Redis
) -> None:
    """The bucket went back in time: what Redis published has no commit, and is never used."""
    client, reader = LedgerClient(redis_client, config.run, 10), LedgerReader(redis_client, config.run)
    genesis = prepare_run(config, model, DATA, object_store)
    register_run(client, genesis, "worker")
    chain = CommitChain(object_store, config.run)
    check_not_ahead(reader, chain)
    lost = chain.append(next_commit(genesis, "1" * 64))
    TrainerLedger.take_role(client, "box", 0).publish(lost, "object")
    object_store.delete(lost.key)
    with pytest.raises(StoreRefused, match=r"lost commits.*version 1.*genesis\.json") as caught:
        check_not_ahead(reader, chain)
    assert caught.value.exit_code == 7


def test_a_version_published_while_the_service_starts_is_no_lost_commit(
    config: RunConfig, model: Path, object_store: ObjectStore, redis_client: redis.Redis
) -> None:
    """Whatever moment of the start a commit and its publishing fall into."""
    client, reader = LedgerClient(redis_client, config.run, 10), LedgerReader(redis_client, config.run)
    chain = CommitChain(object_store, config.run)
    trainer = TrainerLedger.take_role(client, "box", 0)

    class Publishing(LedgerReader):
        """The trainer publishes between two of the service's looks."""

        def run_state(self) -> dict[str, str]:
            head = chain.head()
            assert head is not None
            trainer.publish(chain.append(next_commit(head, f"{head.next_round + 1}" * 64)), "object")
            return super().run_state()

    head = prepare_run(config, model, DATA, object_store)
    register_run(client, head, "worker")
    check_not_ahead(Publishing(redis_client, config.run), chain)
    check_not_ahead(Publishing(redis_client, config.run), chain)
    assert reader.run_state()["version"] == "2"


def test_a_stopped_run_is_active_again_when_it_is_started(
    config: RunConfig, model: Path, object_store: ObjectStore, redis_client: redis.Redis
) -> None:
    client, reader = LedgerClient(redis_client, config.run, 10), LedgerReader(redis_client, config.run)
    head = prepare_run(config, model, DATA, object_store)
    register_run(client, head, "worker")
    TrainerLedger.take_role(client, "box", 0).stop("too many failed groups")
    assert reader.run_state()["state"] == "stopped"
    register_run(client, head, "worker")
    assert reader.run_state()["state"] == "active"
    assert "stop_reason" not in reader.run_state()


def test_a_response_longer_than_the_models_positions_is_refused_before_anything_is_written(
    run_name: str, model: Path, object_store: ObjectStore
) -> None:
    (model / "config.json").write_text('{"max_position_embeddings": 512}')
    with pytest.raises(BadInput, match="less than 512"):
        prepare_run(make_config(run_name, sampling={"max_new_tokens": 512}), model, DATA, object_store)
    assert CommitChain(object_store, run_name).head() is None
    prepare_run(make_config(run_name, sampling={"max_new_tokens": 511}), model, DATA, object_store)

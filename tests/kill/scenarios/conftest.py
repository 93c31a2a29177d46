"""Named failures, each at a precise instant: trainers in threads that stand still at a call, or real processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from rolloutpipe_core.config.connections import RedisConnection
from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.local.servers import LocalServers
from rolloutpipe_core.observe.audit import audit_run
from rolloutpipe_core.store.commits import Commit
from rolloutpipe_core.store.objects import ObjectStore, PutResult

from ...contract.trainer.conftest import Bench, make_bench, make_config, tiny_model
from ...e2e.conftest import Run, run
from ..evidence import read_evidence
from ..history import check

__all__ = ["Bench", "Run", "StandingClient", "StandingStore", "run", "tiny_model"]

T = TypeVar("T")

STANDS_AT_MOST_S = 120.0
"""Only a failing test reaches it."""


class StandingClient(LedgerClient):
    """A process that stands still, as under SIGSTOP, before its first call of what `stop_at` names: a script, or what
    `patiently` is told.

    All its calls wait then, from whichever thread, until `wake`.
    """

    def __init__(self, client: redis.Redis, run: str, deadline_s: float) -> None:
        super().__init__(client, run, deadline_s)
        self.stop_at = ""
        self.stands = threading.Event()
        self._awake = threading.Event()
        self._awake.set()

    def wake(self) -> None:
        self._awake.set()

    def patiently(self, operation: Callable[[], T], what: str) -> T:
        if what.removeprefix("script ") == self.stop_at:
            self.stop_at = ""
            self._awake.clear()
            self.stands.set()
        assert self._awake.wait(STANDS_AT_MOST_S), f"nobody woke it up ({what})"
        return super().patiently(operation, what)


class StandingStore(ObjectStore):
    """The store; the first commit stands still before its PUT, until `go`."""

    def __init__(self, client: Any, bucket: str) -> None:
        super().__init__(client, bucket, deadline_s=20.0)
        self.stands = threading.Event()
        self.go = threading.Event()

    def put_if_absent(self, key: str, data: bytes) -> PutResult:
        if key.endswith("/c000000.json"):
            self.stands.set()
            assert self.go.wait(STANDS_AT_MOST_S), "nobody woke it up"
        return super().put_if_absent(key, data)


@pytest.fixture
def bench(
    request: pytest.FixtureRequest,
    valkey: RedisConnection,
    object_store: ObjectStore,
    run_name: str,
    tiny_model: Path,
    tmp_path: Path,
) -> Iterator[Bench]:
    """A run with rollout by hand; `indirect` parameters change the schedule."""
    client = valkey.client()
    config = make_config(run_name, tiny_model, **getattr(request, "param", {}))
    yield make_bench(config, client, object_store, tiny_model, tmp_path / "cache")
    client.close()


@pytest.fixture
def standing_client(bench: Bench, valkey: RedisConnection) -> Iterator[StandingClient]:
    client = valkey.client()
    standing = StandingClient(client, bench.config.run, bench.config.deadlines.redis_s)
    yield standing
    standing.wake()
    client.close()


@pytest.fixture
def standing_store(bench: Bench, s3_client: Any) -> Iterator[StandingStore]:
    standing = StandingStore(s3_client, bench.config.bucket)
    yield standing
    standing.go.set()


@pytest.fixture
def own_run(own_servers: LocalServers, tmp_path: Path, run_name: str) -> Iterator[Run]:
    """Real services on servers of their own."""
    connections = own_servers.connections
    store = ObjectStore(connections.s3.client(), "rolloutpipe-tests", deadline_s=20.0)
    client = connections.redis.client()
    run = Run(run_name, tmp_path, connections, store, LedgerReader(client, run_name, 20.0))
    yield run.configure()
    for process in run.processes:
        process.popen.kill()
        process.popen.wait()
    client.close()


def commits(bench: Bench) -> list[Commit]:
    return [link.commit for link in bench.chain.read() if isinstance(link.commit, Commit)]


def check_trained_once(bench: Bench, rounds: int = 1) -> None:
    """Every group of every round is in exactly one commit, in one update; ledger and objects tell the same."""
    size = bench.config.schedule.groups_per_round
    found = [[group.group for group in commit.groups] for commit in commits(bench)]
    assert [sorted(groups) for groups in found] == [
        [f"r{round:06d}-g{index:04d}" for index in range(size)] for round in range(rounds)
    ]
    assert {row["state"] for round in range(rounds) for row in bench.reader.groups(round)} == {GroupState.TRAINED}
    assert [version for version, _ in bench.reader.versions()][1:] == [commit.version for commit in commits(bench)]
    audit = audit_run(bench.reader, bench.store)
    assert audit.passed, audit.findings
    check_evidence(bench.rollout.ledger.client.redis, bench.store, bench.config.run)


def check_complete(run: Run, rounds: int, *, redis_lost: bool = False) -> None:
    """The run has all its versions, and every group is trained once: by its audit, and by the independent checker.

    The checker wants the whole history, which a Redis that lost a second has not.
    """
    assert run.reader.run_state()["version"] == str(rounds)
    states = [row["state"] for round in range(rounds) for row in run.reader.groups(round)]
    assert set(states) == {GroupState.TRAINED}
    audit = run.audit()
    assert audit.passed, audit.findings
    assert audit.groups_trained == len(states)
    if not redis_lost:
        client = run.connections.redis.client()
        check_evidence(client, run.store, run.name)
        client.close()


def check_evidence(client: redis.Redis, store: ObjectStore, run: str) -> None:
    """The independent checker finds nothing."""
    violations = check(read_evidence(client, store._client, store.bucket, run))
    assert not violations, "\n".join(map(str, violations))

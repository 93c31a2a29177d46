"""A prepared run in Redis, driven by hand from both sides; and a proxy that loses answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
import redis

from rolloutpipe_core.config.connections import RedisConnection
from rolloutpipe_core.config.models import ScheduleConfig
from rolloutpipe_core.domain import GroupRef, GroupState, group_id
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.rollout import Cohort, Draw, Lease, RolloutLedger, draw_none
from rolloutpipe_core.ledger.trainer import Announced, TrainerLedger
from rolloutpipe_core.preparation import register_run
from rolloutpipe_core.store.commits import (
    Commit,
    EndedGroup,
    Genesis,
    Link,
    Previous,
    TrainedGroup,
    TrainedUpdate,
    TrainerEpoch,
)

GROUPS, K, U = 4, 2, 2
SCHEDULE = ScheduleConfig(
    kind="cgp", groups_per_round=GROUPS, samples_per_group=K, update_batch_size=K * U, frontier_width=2
)


class LossyProxy:
    """Forwards TCP to a Redis. While `lossy`, every script call reaches it, but only every other one's answer comes
    back: instead the connection is cut, as by a failing network. So each call is made twice."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.lossy = False
        self.lost = 0
        self._calls = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            doomed = threading.Event()
            threading.Thread(target=self._requests, args=(client, server, doomed), daemon=True).start()
            threading.Thread(target=self._answers, args=(server, client, doomed), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            while chunk := client.recv(65536):
                if self.lossy and b"EVALSHA" in chunk:
                    self._calls += 1
                    if self._calls % 2:
                        doomed.set()
                server.sendall(chunk)
        _cut(client, server)

    def _answers(self, server: socket.socket, client: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            while chunk := server.recv(65536):
                if doomed.is_set():
                    self.lost += 1
                    break
                client.sendall(chunk)
        _cut(client, server)


def _cut(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(redis_server: RedisConnection) -> Iterator[LossyProxy]:
    proxy = LossyProxy(redis_server.nodes[0])
    yield proxy
    proxy.close()


@pytest.fixture
def lossy_client(redis_server: RedisConnection, proxy: LossyProxy) -> Iterator[redis.Redis]:
    """A client whose answers the proxy may lose."""
    client = replace(redis_server, nodes=(("127.0.0.1", proxy.port),)).client()
    yield client
    client.close()


@dataclass
class HandRun:
    """A run at version 0, and what a worker and a trainer do to it, call by call."""

    client: LedgerClient
    reader: LedgerReader
    rollout: RolloutLedger
    genesis: Genesis
    head: Link

    @classmethod
    def prepare(cls, client: redis.Redis, run: str) -> HandRun:
        ledger = LedgerClient(client, run, 10)
        genesis = Genesis(run=run, lineage=1, weights_sha="a" * 64, data_fingerprint="data", config_sha="c" * 64)
        head = Link(genesis.key, "0" * 64, genesis)
        register_run(ledger, head, "worker")
        return cls(ledger, LedgerReader(client, run), RolloutLedger(ledger, "worker", 3600, 3), genesis, head)

    def cohort(self) -> Cohort:
        """Of the round after the head."""
        round = self.head.next_round
        cursor = self.head.commit.cursor
        places = range(cursor, cursor + GROUPS)
        return Cohort(
            round=round,
            lineage=1,
            version=self.head.commit.version,
            groups=tuple(group_id(round, index) for index in range(GROUPS)),
            prompts=tuple(f"p{place}" for place in places),
            cohort_sha="c" * 64,
            data_fingerprint="data",
            cursor=places.start,
            cursor_end=places.stop,
        )

    def open(self) -> None:
        self.rollout.open_round(self.cohort(), SCHEDULE)

    def admit(self, index: int) -> Lease:
        return self.rollout.admit(group_id(self.head.next_round, index))

    def reference(self, lease: Lease) -> GroupRef:
        round, index = self.head.next_round, int(lease.group[-4:])
        version = self.head.commit.version
        return GroupRef(lease.group, round, index, 1, lease.attempt, version, "object", "e" * 64, K, 10, 0.5, 0.25)

    def announce(self, lease: Lease) -> None:
        self.rollout.serving_complete(lease)
        self.rollout.materialized(lease)
        self.rollout.announce(lease, self.reference(lease), 8, 5)

    def score(self, index: int) -> Lease:
        """Admit a group and serve it up to its rewards."""
        lease = self.admit(index)
        self.rollout.serving_complete(lease)
        self.rollout.materialized(lease)
        return lease

    def filter(self, index: int, draw: Draw = draw_none) -> None:
        self.end(self.score(index), draw)

    def end(self, lease: Lease, draw: Draw = draw_none) -> None:
        facts = {"reward_mean": 1.0, "reward_std": 0, "response_tokens": 8}
        self.rollout.filtered(lease, "zero variance of rewards", facts, draw)

    def take_role(self) -> TrainerLedger:
        return TrainerLedger.take_role(self.client, "box:7", 0)

    def announced(self, trainer: TrainerLedger) -> list[Announced]:
        return [entry for entry in trainer.read("0-0") if isinstance(entry, Announced)]

    def commit(self, updates: list[list[tuple[int, int]]], ended: dict[int, tuple[GroupState, str]]) -> Link:
        """The next commit: updates of (index, attempt), and ends by index. The head moves on to it."""
        round, before = self.head.next_round, self.head.commit
        name = lambda index: group_id(round, index)  # noqa: E731
        commit = Commit(
            run=before.run,
            lineage=1,
            weights_sha=f"{round + 1:x}" * 64,
            data_fingerprint="data",
            config_sha=before.config_sha,
            previous=Previous(key=self.head.key, sha256=self.head.sha256),
            trainer_epoch=TrainerEpoch(number=1, nonce="n"),
            round=round,
            updates=tuple(
                TrainedUpdate(
                    index=place,
                    samples=K * len(members),
                    tokens=10 * len(members),
                    groups=tuple(
                        TrainedGroup(
                            group=name(index), attempt=attempt, object="object", sha256="e" * 64, samples=K, tokens=10
                        )
                        for index, attempt in members
                    ),
                )
                for place, members in enumerate(updates)
            ),
            ended=tuple(
                EndedGroup(group=name(index), state=state, reason=reason) for index, (state, reason) in ended.items()
            ),
            cohort_sha="c" * 64,
            cursor=before.cursor + sum(map(len, updates)) + len(ended),
            checkpoint=None,
        )
        self.head = Link(commit.key, f"{round + 1:x}" * 64, commit)
        return self.head

    def snapshot(self) -> dict[str, Any]:
        """Every key of the run by its content, without its name; what depends on clock and chance is left out."""
        found: dict[str, Any] = {}
        server: Any = self.client.redis
        prefix = self.client.keys.prefix
        for key in sorted(server.scan_iter(f"{prefix}*", count=1000)):
            name = key.removeprefix(prefix)
            match server.type(key):
                case "hash":
                    found[name] = self._lasting(server.hgetall(key))
                case "zset":
                    found[name] = server.zrange(key, 0, -1)
                case "stream":
                    found[name] = [self._lasting(fields) for _, fields in server.xrange(key)]
                case "set":
                    found[name] = server.smembers(key)
        found["pending"] = len(self.reader.pending())
        return found

    def _lasting(self, fields: dict[str, str]) -> dict[str, str]:
        changing = ("nonce", "trainer_nonce", "entry", "stepped", "released")
        lasting = {name: text for name, text in fields.items() if name not in changing and not name.endswith("_ms")}
        return {name: text.replace(self.client.keys.name, "RUN") for name, text in lasting.items()}


@pytest.fixture
def hand(redis_client: redis.Redis, run_name: str) -> HandRun:
    return HandRun.prepare(redis_client, run_name)

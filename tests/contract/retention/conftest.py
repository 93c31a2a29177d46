"""A run made by hand in a real store and a real Redis: objects, commits, and the trainer's role."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import WeightVersion, group_id
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.events import ObjectsMoved
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.retention import Pins, RetentionLedger
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.preparation import register_run
from rolloutpipe_core.retention.sweep import Retention
from rolloutpipe_core.store.canonical import sha256_hex
from rolloutpipe_core.store.commits import (
    Checkpoint,
    Commit,
    CommitChain,
    Genesis,
    Link,
    TrainedGroup,
    TrainedUpdate,
    TrainerEpoch,
)
from rolloutpipe_core.store.groups import group_key
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.weights import weights_prefix

SHA = "ab" * 32
GROUPS = 2


@dataclass
class HandRun:
    name: str
    client: LedgerClient
    store: ObjectStore
    reader: LedgerReader
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chain = CommitChain(self.store, self.name)
        self.pins = Pins(self.client)
        genesis = Genesis(
            run=self.name, lineage=1, weights_sha=self.weights("v0"), data_fingerprint="d", config_sha=SHA
        )
        self.links = [self.chain.begin(genesis)]
        register_run(self.client, self.links[0], "test")

    def config(self, **retention: Any) -> RunConfig:
        keep = {"keep_rounds": 2, "keep_versions": 2, "orphan_age_s": 1, "grace_s": 600} | retention
        return RunConfig.model_validate(
            {"run": self.name, "model": {"path": "none"}, "retention": keep, **self.changes}
        )

    def retention(
        self, ripe_s: float = 0, ledger: Callable[..., RetentionLedger] = RetentionLedger, **retention: Any
    ) -> Retention:
        """A trainer incarnation's retention: it takes the role. Retired sets are ripe at once."""
        epoch = TrainerLedger.take_role(self.client, "test", 0).epoch
        config = self.config(**retention)
        return Retention(config, self.store, self.chain, ledger(self.client, epoch), self.pins, ripe_s)

    def put(self, name: str, data: bytes = b"bytes") -> str:
        """An object of the run; returns its key."""
        key = f"runs/{self.name}/{name}"
        self.store.put(key, data)
        return key

    def begin_upload(self, name: str) -> None:
        """An upload in parts that nobody completes."""
        key = f"runs/{self.name}/{name}"
        self.store._client.create_multipart_upload(Bucket=self.store.bucket, Key=key)

    def weights(self, content: str) -> str:
        """Upload a directory of weights; returns its manifest's hash, which also depends on the run."""
        manifest = json.dumps({"files": [], "run": self.name, "content": content}).encode()
        prefix = weights_prefix(self.name, sha256_hex(manifest))
        self.store.put(f"{prefix}/model.safetensors", content.encode())
        self.store.put(f"{prefix}/manifest.json", manifest)
        return sha256_hex(manifest)

    def groups(self, round: int) -> tuple[TrainedGroup, ...]:
        made = []
        for index in range(GROUPS):
            data = f"{self.name} {round} {index}".encode()
            key = group_key(self.name, round, index, sha256_hex(data))
            self.store.put(key, data)
            name = group_id(round, index)
            made.append(TrainedGroup(group=name, attempt=1, object=key, sha256=sha256_hex(data), samples=2, tokens=9))
        return tuple(made)

    def checkpoint(self, attempt: str) -> Checkpoint:
        self.put(f"checkpoints/{attempt}/optimizer.bin")
        self.put(f"checkpoints/{attempt}/manifest.json")
        return Checkpoint(prefix=f"runs/{self.name}/checkpoints/{attempt}", manifest_sha=SHA)

    def commit(self, content: str | None = None) -> Link:
        """One round with its objects; its weights hold `content` ("v1" for round 0, and so on)."""
        head = self.links[-1]
        round, groups = head.next_round, self.groups(head.next_round)
        update = TrainedUpdate(index=0, samples=2 * GROUPS, tokens=9 * GROUPS, groups=groups)
        commit = Commit(
            run=self.name,
            lineage=1,
            weights_sha=self.weights(content or f"v{round + 1}"),
            data_fingerprint="d",
            config_sha=SHA,
            previous=head.as_previous,
            trainer_epoch=TrainerEpoch(number=1, nonce="n"),
            round=round,
            updates=(update,),
            ended=(),
            cohort_sha=SHA,
            cursor=0,
            checkpoint=self.checkpoint(f"r{round:06d}-e1-n"),
        )
        self.links.append(self.chain.append(commit))
        return self.links[-1]

    def grow(self, rounds: int) -> None:
        """Rounds; the last in a later second than the others, as retention compares the store's whole seconds."""
        for _ in range(rounds - 1):
            self.commit()
        self.next_second()
        self.commit()

    def next_second(self) -> None:
        started = self.store.now()
        while self.store.now() == started:
            time.sleep(0.05)

    def version(self, number: int) -> WeightVersion:
        return self.links[number].commit.version

    def set(self, number: int) -> str:
        return f"weights/{self.version(number).sha[:16]}"

    def sets(self) -> set[str]:
        """What of groups, weights and checkpoints is there: weights by version number, rounds and attempts by name."""
        numbers = {self.set(link.commit.version.number): f"v{link.commit.version.number}" for link in self.links}
        found = set()
        for info in self.store.list(f"runs/{self.name}/"):
            kind, _, rest = info.key.removeprefix(f"runs/{self.name}/").partition("/")
            if kind in ("groups", "weights", "checkpoints"):
                name = f"{kind}/{rest.partition('/')[0]}"
                found.add(numbers.get(name, name))
        return found

    def moves(self) -> list[tuple[str, tuple[str, ...], int]]:
        """The ledger's word on retention: (phase, sets, objects)."""
        events = [event for event in self.reader.events() if isinstance(event, ObjectsMoved)]
        return [(event.phase, event.sets, event.objects) for event in events]

    def marks(self) -> set[str]:
        return set(self.client.redis.hkeys(self.client.keys.retired))  # type: ignore[arg-type]


@pytest.fixture
def hand(redis_client: redis.Redis, object_store: ObjectStore, run_name: str) -> HandRun:
    client = LedgerClient(redis_client, run_name, 10)
    return HandRun(run_name, client, object_store, LedgerReader(redis_client, run_name))

"""A trainer service on real servers, and rollout by hand: each test decides what is announced to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
import torch
from rolloutpipe_components.trainer.backends.torch import TorchTrainer
from rolloutpipe_components.trainer.rank import Rank
from rolloutpipe_components.trainer.service import TrainerParts, TrainerService
from transformers import Qwen3Config, Qwen3ForCausalLM

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import (
    FinishReason,
    Group,
    GroupRef,
    RoundState,
    Sample,
    VersionSpan,
    WeightVersion,
    group_id,
)
from rolloutpipe_core.ledger.beacon import Beacon
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.events import GroupMoved
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.rollout import Cohort, Lease, RolloutLedger
from rolloutpipe_core.preparation import prepare_run, register_run
from rolloutpipe_core.store.commits import CommitChain
from rolloutpipe_core.store.groups import encode_group, reference_of
from rolloutpipe_core.store.objects import ObjectStore

K, R = 2, 3
VOCABULARY = 16


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, tie_word_embeddings=True, **shape, **heads))
    folder = tmp_path_factory.mktemp("tiny-model")
    model.save_pretrained(folder)
    return folder


def make_config(run: str, model: Path, **schedule: Any) -> RunConfig:
    shape = {"groups_per_round": R, "samples_per_group": K, "update_batch_size": K, "rounds": 1, "kind": "cgp"}
    return RunConfig.model_validate(
        {
            "run": run,
            "bucket": "rolloutpipe-tests",
            "model": {"path": str(model)},
            "sampling": {"max_new_tokens": 16},
            "schedule": {**shape, "frontier_width": 2, "max_unusable_fraction": 0.5, **schedule},
            "deadlines": {"group_s": 20, "partner_s": 5, "redis_s": 20, "store_s": 20},
            "leases": {"max_rejections": 1, "heartbeat_s": 0.2},
        }
    )


@dataclass
class HandRollout:
    """Announces groups one by one; `change_group` and `change_bytes` damage what is announced."""

    config: RunConfig
    ledger: RolloutLedger
    reader: LedgerReader
    store: ObjectStore
    version: WeightVersion

    def open(self, round: int = 0) -> None:
        size = self.config.schedule.groups_per_round
        groups = tuple(group_id(round, index) for index in range(size))
        places = (round * size, (round + 1) * size)
        prompts = tuple(f"p{place}" for place in range(*places))
        cohort = Cohort(round, 1, self.version, groups, prompts, "c" * 64, "data", *places)
        self.ledger.open_round(cohort, self.config.schedule)

    def admit(self, index: int, round: int = 0) -> Lease:
        return self.ledger.admit(group_id(round, index))

    def group(self, lease: Lease, round: int = 0) -> Group:
        index = int(lease.group[-4:])
        random = np.random.default_rng([round, index])
        samples = tuple(self._sample(random, place) for place in range(K))
        prompt = f"p{round * self.config.schedule.groups_per_round + index}"
        return Group(self.config.run, 1, round, index, lease.attempt, self.version, prompt, samples)

    def _sample(self, random: np.random.Generator, index: int) -> Sample:
        length = int(random.integers(2, 6))
        return Sample(
            index=index,
            prompt_ids=np.array([3, 4, 5], np.int32),
            response_ids=random.integers(2, VOCABULARY, length, dtype=np.int32),
            behavior_logprobs=np.full(length, -2.5, np.float32),
            loss_mask=np.ones(length, np.uint8),
            reward=float(index),
            advantage=1.0 if index else -1.0,
            finish_reason=FinishReason.STOP,
            spans=(VersionSpan(self.version, 0, length),),
        )

    def announce(
        self,
        lease: Lease,
        group: Group,
        *,
        change_ref: Callable[[GroupRef], GroupRef] = lambda ref: ref,
        change_bytes: Callable[[bytes], bytes | None] = lambda data: data,
        encode: Callable[[Group], bytes] = encode_group,
    ) -> GroupRef:
        """Announce `group`; the object holds `change_bytes` of its bytes, or is missing when that is None."""
        data = encode(group)
        ref = change_ref(reference_of(group, data))
        stored = change_bytes(data)
        if stored is not None:
            self.store.put(ref.object, stored)
        self.ledger.serving_complete(lease)
        self.ledger.materialized(lease)
        self.ledger.announce(lease, ref, 8, 5)
        return ref

    def serve(self, index: int, round: int = 0) -> None:
        """One good group."""
        lease = self.admit(index, round)
        self.announce(lease, self.group(lease, round))

    def moves(self, group: str) -> list[GroupMoved]:
        return [event for event in self.reader.events() if isinstance(event, GroupMoved) and event.group == group]


class RecordingTrainer(TorchTrainer):
    """The real trainer; remembers what was accumulated."""

    accumulated: list[tuple[str, int]]

    def accumulate(self, groups: Sequence[Group]) -> None:
        self.accumulated += [(group.id, group.attempt) for group in groups]
        super().accumulate(groups)


@dataclass
class RunningTrainer:
    """A trainer service in a thread."""

    service: TrainerService
    reader: LedgerReader
    accumulated: list[tuple[str, int]] = field(default_factory=list)
    error: BaseException | None = None
    thread: threading.Thread | None = None

    def start(self) -> RunningTrainer:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def _run(self) -> None:
        try:
            with self.service.parts.beacon:
                self.service.run()
        except BaseException as error:
            self.error = error

    def finish(self, timeout_s: float = 240) -> None:
        """Wait for its end; raises what ended it."""
        assert self.thread is not None
        self.thread.join(timeout_s)
        assert not self.thread.is_alive(), "the trainer still runs"
        if self.error is not None:
            raise self.error

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 240) -> None:
        """Poll until the condition holds, or the trainer ended with an error."""
        pause = threading.Event()
        for _ in range(int(timeout_s / 0.02)):
            if condition():
                return
            if self.error is not None:
                raise self.error
            pause.wait(0.02)
        raise AssertionError("the condition did not come true")

    def published(self, round: int = 0) -> bool:
        return self.reader.round_state(round).get("state") == RoundState.PUBLISHED


@dataclass
class Bench:
    """A prepared run with both sides."""

    config: RunConfig
    rollout: HandRollout
    reader: LedgerReader
    store: ObjectStore
    chain: CommitChain
    start_trainer: Callable[..., RunningTrainer]


def make_bench(config: RunConfig, client: redis.Redis, store: ObjectStore, model: Path, cache: Path) -> Bench:
    ledger_client = LedgerClient(client, config.run, config.deadlines.redis_s)
    reader = LedgerReader(client, config.run, config.deadlines.redis_s)
    head = prepare_run(config, model, "data", store)
    register_run(ledger_client, head, "test")
    chain = CommitChain(store, config.run)
    rollout = HandRollout(config, RolloutLedger(ledger_client, "hand", 60, 4), reader, store, head.commit.version)

    def start_trainer(
        changed: RunConfig = config, *, client: LedgerClient = ledger_client, objects: ObjectStore = store
    ) -> RunningTrainer:
        """A trainer with its own clients, where they are given."""
        running: RunningTrainer

        def make(directory: Path, reference: Path | None) -> RecordingTrainer:
            trainer = RecordingTrainer.of(changed, directory, reference)
            trainer.accumulated = running.accumulated
            return trainer

        beacon = Beacon(client, "trainer", "trainer", changed.leases.heartbeat_s)
        own_chain = CommitChain(objects, config.run)
        rank = Rank(objects, config.run, cache, make)
        parts = TrainerParts(changed, client, reader, objects, own_chain, rank, beacon)
        running = RunningTrainer(TrainerService(parts), reader)
        return running.start()

    return Bench(config, rollout, reader, store, chain, start_trainer)


@pytest.fixture
def bench(
    request: pytest.FixtureRequest,
    redis_client: redis.Redis,
    object_store: ObjectStore,
    run_name: str,
    tiny_model: Path,
    tmp_path: Path,
) -> Iterator[Bench]:
    """`indirect` parameters change the schedule."""
    config = make_config(run_name, tiny_model, **getattr(request, "param", {}))
    yield make_bench(config, redis_client, object_store, tiny_model, tmp_path / "cache")


def with_sample(group: Group, index: int, **changes: Any) -> Group:
    """The group with one sample changed."""
    samples = list(group.samples)
    samples[index] = replace(samples[index], **changes)
    return replace(group, samples=tuple(samples))

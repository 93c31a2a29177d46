"""Rollout workers on real servers with the real engine and verifiers; the trainer is played by hand."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import redis
import torch
from rolloutpipe_components.rollout.engine import Engine
from rolloutpipe_components.rollout.engines.torch import TorchEngine
from rolloutpipe_components.rollout.group import GroupServer
from rolloutpipe_components.rollout.service import RolloutParts, RolloutService
from rolloutpipe_components.rollout.tokenize import PromptTokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rolloutpipe_core.config.connections import RedisConnection
from rolloutpipe_core.config.models import RunConfig, SamplingConfig
from rolloutpipe_core.data.load import load_prompts
from rolloutpipe_core.data.models import resolve_model
from rolloutpipe_core.data.prompts import PromptSet
from rolloutpipe_core.domain import ENDED_STATES, Completion, Group, GroupState, WeightVersion, group_id
from rolloutpipe_core.errors import EngineFailure
from rolloutpipe_core.ledger.beacon import Beacon
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.events import GroupMoved
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.rollout import Lease, RolloutLedger
from rolloutpipe_core.ledger.trainer import Announced, TrainerLedger
from rolloutpipe_core.preparation import check_not_ahead, prepare_run, register_run
from rolloutpipe_core.rewards.pool import VerifierPool
from rolloutpipe_core.store.cache import DirectoryCache
from rolloutpipe_core.store.commits import (
    Commit,
    CommitChain,
    EndedGroup,
    Link,
    TrainedGroup,
    TrainedUpdate,
    TrainerEpoch,
)
from rolloutpipe_core.store.groups import decode_group
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.weights import publish_weights, weights_prefix

R, K, U = 4, 4, 2
SMALL: dict[str, dict[str, Any]] = {
    "schedule": {
        "kind": "cgp+fgd",
        "frontier_mode": "hard",
        "rounds": 1,
        "groups_per_round": R,
        "samples_per_group": K,
        "update_batch_size": K * U,
        "frontier_width": 2,
        "max_unusable_fraction": 1.0,
    },
    "sampling": {"max_new_tokens": 24},
    "engine": {"slots": 8},
    "rewards": {"deadline_s": 60},
    "leases": {"lease_s": 60},
    "deadlines": {"publish_s": 60, "engine_s": 60, "redis_s": 30, "store_s": 30},
}
DEADLINE_S = 60.0
"""Of a test's own waits; only a failing test reaches it."""


def make_config(run: str, **changes: Any) -> RunConfig:
    """The small run with sections changed key by key, and other keys as they are given."""
    sections = {name: change for name, change in changes.items() if isinstance(change, dict)}
    sections = {name: {**SMALL.get(name, {}), **sections.get(name, {})} for name in {*SMALL, *sections}}
    head = {"run": run, "bucket": "rolloutpipe-tests", "model": {"path": "builtin:pointer-walk"}}
    return RunConfig.model_validate({**head, **changes, **sections})


class WrappedEngine:
    """The real engine; subclasses come between it and the service."""

    loading: asyncio.Lock
    """Of all engines of this process: transformers builds one model at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.loaded: list[WeightVersion] = []
        self.calls: Counter[int] = Counter()  # by the group's place in its round

    async def load(self, version: WeightVersion, directory: Path) -> None:
        self.loaded.append(version)
        async with self.loading:
            await self.engine.load(version, directory)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, seeds: Sequence[int], priority: int
    ) -> list[Completion]:
        self.calls[priority] += 1
        return await self.engine.generate(prompt_ids, sampling, seeds, priority)

    def spare_slots(self) -> int:
        return self.engine.spare_slots()

    async def close(self) -> None:
        await self.engine.close()


class BreakingEngine(WrappedEngine):
    """Breaks on the first so many tries of the given groups."""

    def __init__(self, engine: Engine, failures: dict[int, int]) -> None:
        super().__init__(engine)
        self.failures = failures

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, seeds: Sequence[int], priority: int
    ) -> list[Completion]:
        completions = await super().generate(prompt_ids, sampling, seeds, priority)
        if self.calls[priority] <= self.failures.get(priority, 0):
            raise EngineFailure("the engine broke", given=f"group {priority}, try {self.calls[priority]}")
        return completions


class HoldingEngine(WrappedEngine):
    """Keeps the answers of the given groups until they are let go; `holds` says how many it keeps."""

    def __init__(self, engine: Engine, groups: Sequence[int]) -> None:
        super().__init__(engine)
        self.groups = set(groups)
        self.holds = 0
        self.go = asyncio.Event()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, seeds: Sequence[int], priority: int
    ) -> list[Completion]:
        completions = await super().generate(prompt_ids, sampling, seeds, priority)
        if priority in self.groups:
            self.holds += 1
            await self.go.wait()
        return completions


class HoldingStore:
    """The store; its uploads wait until they are let go."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.go = threading.Event()
        self.put_keys: list[str] = []

    def put(self, key: str, data: bytes) -> None:
        assert self.go.wait(DEADLINE_S)
        self._store.put(key, data)
        self.put_keys.append(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class StandingLedger(RolloutLedger):
    """A worker that stands still, as far as others can see: its leases are not renewed."""

    def renew(self, round: int, leases: Sequence[Lease]) -> list[str]:
        return []


@dataclass
class Worker:
    """A rollout service at work."""

    service: RolloutService
    engine: Any
    task: asyncio.Task[None]

    async def finish(self) -> None:
        """Wait for its end; raises what ended it."""
        async with asyncio.timeout(DEADLINE_S):
            await self.task


Wrap = Callable[[Engine], Any]


@dataclass
class Rig:
    """A prepared run. Workers are started in it; `trainer` ends its rounds."""

    config: RunConfig
    redis: redis.Redis
    store: ObjectStore
    model: Path
    next_model: Path
    tmp_path: Path

    def __post_init__(self) -> None:
        self.client = LedgerClient(self.redis, self.config.run, self.config.deadlines.redis_s)
        self.reader = LedgerReader(self.redis, self.config.run, self.config.deadlines.redis_s)
        self.prompts = load_prompts(self.config.data)
        self.tokenizer = PromptTokenizer(self.model, self.config.data)
        self._tasks: list[asyncio.Task[None]] = []
        self._loading = asyncio.Lock()
        self.restore()
        self.trainer = HandTrainer(self)

    def restore(self) -> None:
        head = prepare_run(self.config, self.model, self.prompts.fingerprint, self.store)
        register_run(self.client, head, "test")
        check_not_ahead(self.reader, CommitChain(self.store, self.config.run))

    def changed(self, **changes: dict[str, Any]) -> RunConfig:
        """The run's configuration with sections changed key by key, as at another start."""
        sections = {name: getattr(self.config, name).model_dump() | values for name, values in changes.items()}
        return RunConfig.model_validate(self.config.model_dump() | sections)

    @asynccontextmanager
    async def worker(
        self,
        name: str = "worker-0",
        *,
        config: RunConfig | None = None,
        wrap: Wrap = WrappedEngine,
        ledger: type[RolloutLedger] = RolloutLedger,
        store: Any = None,
        prompts: PromptSet | None = None,
        client: LedgerClient | None = None,
    ) -> AsyncIterator[Worker]:
        """A worker that runs while the block does; afterwards it is cancelled, as by SIGTERM."""
        config, client = config or self.config, client or self.client
        held = ledger(client, name, config.leases.lease_s, config.leases.max_attempts)
        engine = wrap(TorchEngine(config.engine, config.model, config.deterministic))
        engine.loading = self._loading
        async with VerifierPool(config.rewards) as verifiers:
            store = store or self.store
            groups = GroupServer(config, held, store, engine, verifiers, self.tokenizer)
            beacon = Beacon(client, "rollout", name, config.leases.heartbeat_s)
            with DirectoryCache(self.tmp_path / "cache") as cache:
                service = RolloutService(
                    RolloutParts(
                        config, held, self.reader, store, engine, groups, prompts or self.prompts, beacon, cache,
                        self.restore,
                    )
                )  # fmt: skip
                task = asyncio.create_task(service.run())
                self._tasks.append(task)
                try:
                    yield Worker(service, engine, task)
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    await engine.close()

    async def until(self, condition: Callable[[], object]) -> None:
        """Poll until the condition holds; raises what ended a worker meanwhile."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                for task in self._tasks:
                    if task.done() and not task.cancelled():
                        task.result()
                await asyncio.sleep(0.01)

    def reap_as_another(self, round: int = 0) -> list[tuple[str, GroupState]]:
        """Another worker takes back the leases that ran out; it grants no grace after the server's start."""
        return RolloutLedger(self.client, "reaper", 0, self.config.leases.max_attempts).reap(round)

    def states(self, round: int = 0) -> list[str]:
        return [row["state"] for row in self.reader.groups(round)]

    def round_is(self, state: str, round: int = 0) -> bool:
        return self.reader.round_state(round).get("state") == state

    def moves(self, group: int | None = None, round: int = 0) -> list[GroupMoved]:
        moves = [event for event in self.reader.events() if isinstance(event, GroupMoved) and event.round == round]
        return moves if group is None else [event for event in moves if event.group == group_id(round, group)]

    def stored(self, group: int, round: int = 0) -> list[Group]:
        """All objects of a group, whichever attempt, in the order of their attempts."""
        prefix = f"runs/{self.config.run}/groups/r{round:06d}/g{group:04d}-"
        groups = [decode_group(self.store.get(info.key)) for info in self.store.list(prefix)]
        return sorted(groups, key=lambda group: group.attempt)


class HandTrainer:
    """Consumes what is announced and publishes the next version."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.ledger = TrainerLedger.take_role(rig.client, "hand", 0)
        self.chain = CommitChain(rig.store, rig.config.run)

    def announced(self) -> list[Announced]:
        return [entry for entry in self.ledger.read("0-0") if isinstance(entry, Announced)]

    def train(self, round: int = 0) -> Link:
        """The whole drained round in updates of U groups, then its commit and the next version."""
        current = {row["id"]: row for row in self.rig.reader.groups(round)}
        refs = [entry.ref for entry in self.announced() if current[entry.ref.group].get("entry") == entry.entry]
        refs = [ref for ref in refs if current[ref.group]["state"] == GroupState.QUEUED]
        updates = [refs[start : start + U] for start in range(0, len(refs), U)]
        for update, members in enumerate(updates):
            for place, ref in enumerate(members):
                self.ledger.assign(ref, update, place)
            samples, tokens = sum(ref.samples for ref in members), sum(ref.tokens for ref in members)
            self.ledger.seal(round, update, len(members), samples, tokens)
        self.ledger.trained(round, len(updates))
        head, opened = self.chain.head(), self.rig.reader.round_state(round)
        assert head is not None
        facts = head.commit.model_dump(include={"run", "lineage", "data_fingerprint", "config_sha"})
        ended = [row for row in self.rig.reader.groups(round) if row["state"] in ENDED_STATES]
        commit = Commit(
            **facts,
            weights_sha=publish_weights(self.rig.store, self.rig.config.run, self.rig.next_model).manifest_sha,
            previous=head.as_previous,
            trainer_epoch=TrainerEpoch(number=self.ledger.epoch.number, nonce=self.ledger.epoch.nonce),
            round=round,
            updates=tuple(
                TrainedUpdate(
                    index=index,
                    samples=sum(ref.samples for ref in members),
                    tokens=sum(ref.tokens for ref in members),
                    groups=tuple(
                        TrainedGroup(
                            group=ref.group, attempt=ref.attempt, object=ref.object, sha256=ref.sha256,
                            samples=ref.samples, tokens=ref.tokens,
                        )
                        for ref in members
                    ),
                )
                for index, members in enumerate(updates)
            ),
            ended=tuple(EndedGroup(group=row["id"], state=row["state"], reason=row["reason"]) for row in ended),
            cohort_sha=opened["cohort_sha"],
            cursor=int(opened["cursor_end"]),
            checkpoint=None,
        )  # fmt: skip
        link = self.chain.append(commit)
        self.ledger.publish(link, weights_prefix(commit.run, commit.weights_sha))
        return link


@pytest.fixture(scope="session")
def walk_model() -> Path:
    return resolve_model("builtin:pointer-walk")


@pytest.fixture(autouse=True, scope="session")
def warm(walk_model: Path) -> None:
    """One thread, and the model's code imported before any deadline runs."""
    torch.set_num_threads(1)
    AutoModelForCausalLM.from_pretrained(walk_model)


@pytest.fixture(scope="session")
def next_walk_model(walk_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slightly other weights, as after an update."""
    folder = tmp_path_factory.mktemp("next") / "model"
    shutil.copytree(walk_model, folder)
    weights = load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    moved = {name: tensor + 0.02 * torch.randn_like(tensor) for name, tensor in weights.items()}
    save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig(
    valkey: RedisConnection,
    object_store: ObjectStore,
    run_name: str,
    walk_model: Path,
    next_walk_model: Path,
    tmp_path: Path,
) -> Iterator[MakeRig]:
    """`make_rig(section={...}, ...)`: a prepared run with sections of the small configuration changed."""
    client = valkey.client()

    def make(connection: RedisConnection | None = None, **changes: Any) -> Rig:
        config = make_config(run_name, **changes)
        server = client if connection is None else connection.client()
        return Rig(config, server, object_store, walk_model, next_walk_model, tmp_path)

    yield make
    client.close()


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()


def replaced_spans(completions: Sequence[Completion], version: WeightVersion) -> list[Completion]:
    """The completions as if another version had sampled them."""
    return [
        replace(completion, spans=tuple(span._replace(version=version) for span in completion.spans))
        for completion in completions
    ]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that steers `gated_verifier:verify`."""
    folder = tmp_path / "gate"
    folder.mkdir()
    monkeypatch.setenv("ROLLOUTPIPE_TEST_GATE", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return folder

"""A ledger of many groups, made through the real scripts, and what its readers take of time and memory.

The scripts of a round are sent in pipelines. All groups have tiny files, but only those of the last rounds are
uploaded, as retention leaves them; the stream is whole: nothing of it is archived.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import redis

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import GroupRef, WeightVersion
from rolloutpipe_core.errors import LedgerRefused
from rolloutpipe_core.ledger.client import LedgerClient, script_text
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.rollout import RolloutLedger
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.store import commits
from rolloutpipe_core.store.commits import Commit, CommitChain, Link, TrainedGroup, TrainedUpdate
from rolloutpipe_core.store.groups import encode_group, group_key, reference_of
from rolloutpipe_core.store.weights import weights_prefix

from .command import Cost, rolloutpipe
from .workload import BUCKET, LEASE_S, Shape, cohort, make_config, make_group, prepare

TINY = Shape(samples=2, response_tokens=4, prompt_tokens=3)
ROUND = 500  # groups
UPDATE = 4  # groups
KEPT_ROUNDS = 4
UPLOADS_AT_ONCE = 4
STATUS_TRIES = 5


@dataclass(frozen=True, slots=True)
class Memory:
    """Redis's bytes a group."""

    group_bytes: float  # of all the server's memory that the run took
    ledger_bytes: float  # of it the history
    fifo_bytes: float
    hash_bytes: float  # the group's own hash


@dataclass(frozen=True, slots=True)
class LongLedger:
    groups: int
    rounds: int
    events: int
    make_s: float
    memory: Memory
    status: Cost  # median of some
    audit: Cost
    timeline: Cost  # of the newest round
    report: Cost  # of the whole run
    objects: int  # of the groups' files, read by the audit


class PipelinedClient(LedgerClient):
    """Script calls wait for `flush`, which sends them in one go. For calls whose answers their callers don't need."""

    def __init__(self, client: redis.Redis, run: str, deadline_s: float) -> None:
        super().__init__(client, run, deadline_s)
        self._pipe = client.pipeline(transaction=False)
        self._registered: dict[str, Any] = {}
        self._queued: list[str] = []

    def call(self, script: str, keys: Sequence[str], args: Sequence[object]) -> list[Any]:
        """Queue the call. The answer is `admit`'s for a first attempt."""
        registered = self._registered.setdefault(script, self.redis.register_script(script_text(script)))
        registered(keys=keys, args=[str(arg) for arg in args], client=self._pipe)
        self._queued.append(script)
        return ["1"]

    def flush(self) -> None:
        """Run all that is queued. Raises LedgerRefused when one did not go through."""
        queued, self._queued = self._queued, []
        for script, answer in zip(queued, self._pipe.execute(), strict=True):
            if answer[0] != "OK":
                raise LedgerRefused(f"ledger: {script} did not go through", given=str(answer))


class Maker:
    """Makes a run round by round."""

    def __init__(self, connections: Connections, config: RunConfig) -> None:
        self.config = config
        self.head: Link
        self.head, self._client, self._store = prepare(config, connections)
        self._pipelined = PipelinedClient(connections.redis.client(), config.run, 60)
        self._rollout = RolloutLedger(self._pipelined, "bench", LEASE_S, max_attempts=1)
        self._trainer = TrainerLedger.take_role(self._client, "bench", 0)
        self._pipelined_trainer = TrainerLedger(self._pipelined, self._trainer.epoch)
        self._chain = CommitChain(self._store, config.run)

    def add_round(self, keep: bool) -> None:
        """The next round, from its opening to its publication; `keep`: with its groups' files."""
        round, version = self.head.next_round, self.head.commit.version
        opened = cohort(self.config, round, version)
        self._rollout.open_round(opened, self.config.schedule)
        leases = [self._rollout.admit(group) for group in opened.groups]
        self._pipelined.flush()
        refs = self._files(round, version, keep)
        for lease, ref in zip(leases, refs, strict=True):
            self._rollout.serving_complete(lease)
            self._rollout.materialized(lease)
            self._rollout.announce(lease, ref, TINY.samples * TINY.response_tokens, TINY.response_tokens)
        self._pipelined.flush()
        self._read_all()
        updates = [refs[start : start + UPDATE] for start in range(0, len(refs), UPDATE)]
        for index, members in enumerate(updates):
            self._train(round, index, members)
        self._pipelined_trainer.trained(round, len(updates))
        self._pipelined.flush()
        self._publish(opened.cohort_sha, opened.cursor_end, updates)

    def _files(self, round: int, version: WeightVersion, keep: bool) -> list[GroupRef]:
        groups = range(self.config.schedule.groups_per_round)
        if not keep:
            return [_reference(self.config.run, round, index, version) for index in groups]
        made = [make_group(self.config.run, round, index, version, TINY) for index in groups]
        files = [encode_group(group) for group in made]
        refs = [reference_of(group, data) for group, data in zip(made, files, strict=True)]
        with ThreadPoolExecutor(UPLOADS_AT_ONCE) as pool:
            list(pool.map(self._store.put, [ref.object for ref in refs], files))
        return refs

    def _read_all(self) -> None:
        after = "0-0"
        while entries := self._trainer.read(after, count=ROUND):
            after = entries[-1].entry

    def _train(self, round: int, index: int, members: Sequence[GroupRef]) -> None:
        for place, ref in enumerate(members):
            self._pipelined_trainer.assign(ref, index, place)
        samples, tokens = sum(ref.samples for ref in members), sum(ref.tokens for ref in members)
        self._pipelined_trainer.seal(round, index, len(members), samples, tokens)
        now_ms = time.time_ns() // 10**6
        metrics = {"loss": 0.1, "grad_norm": 1.0, "clip_fraction": 0.0, "entropy": 0.2}
        self._pipelined_trainer.stepped(round, index, False, False, [(now_ms - 1, now_ms)], 0, metrics)

    def _publish(self, cohort_sha: str, cursor: int, updates: Sequence[Sequence[GroupRef]]) -> None:
        before, epoch = self.head.commit, self._trainer.epoch
        commit = Commit(
            run=self.config.run,
            lineage=before.lineage,
            weights_sha=before.weights_sha,
            data_fingerprint=before.data_fingerprint,
            config_sha=before.config_sha,
            previous=self.head.as_previous,
            trainer_epoch=commits.TrainerEpoch(number=epoch.number, nonce=epoch.nonce),
            round=self.head.next_round,
            updates=tuple(_committed(index, members) for index, members in enumerate(updates)),
            ended=(),
            cohort_sha=cohort_sha,
            cursor=cursor,
            checkpoint=None,
        )
        self.head = self._chain.append(commit)
        self._trainer.publish(self.head, weights_prefix(self.config.run, commit.weights_sha))


def measure_long_ledger(connections: Connections, folder: Path, groups: int) -> LongLedger:
    """Make a run of about so many groups and read it with the commands that its users have."""
    rounds = max(KEPT_ROUNDS, groups // ROUND)
    run = f"long-{secrets.token_hex(4)}"
    config = make_config(run, ROUND, TINY.samples, rounds, UPDATE)
    config = config.model_copy(update={"retention": config.retention.model_copy(update={"keep_rounds": KEPT_ROUNDS})})
    client: Any = connections.redis.client()
    before = client.info("memory")["used_memory"]
    started = time.monotonic()
    maker = Maker(connections, config)
    for round in range(rounds):
        maker.add_round(keep=round >= rounds - KEPT_ROUNDS)
    make_s = time.monotonic() - started
    made = rounds * ROUND
    memory = _memory(client, LedgerReader(client, run), made, client.info("memory")["used_memory"] - before)
    costs = [rolloutpipe(connections, folder, "status", run) for _ in range(STATUS_TRIES)]
    bucket = ("--bucket", BUCKET)
    return LongLedger(
        groups=made,
        rounds=rounds,
        events=int(client.xlen(LedgerReader(client, run).keys.ledger)),
        make_s=make_s,
        memory=memory,
        status=Cost(median(cost.seconds for cost in costs), max(cost.peak_mib for cost in costs)),
        audit=rolloutpipe(connections, folder, "audit", run, *bucket),
        timeline=rolloutpipe(connections, folder, "timeline", run),
        report=rolloutpipe(connections, folder, "report", run, *bucket, "--output", "long.html"),
        objects=KEPT_ROUNDS * ROUND,
    )


def _memory(client: Any, reader: LedgerReader, groups: int, used: int) -> Memory:
    keys = reader.keys
    sample = [row["id"] for row in reader.groups(0)]
    hashes = [client.memory_usage(keys.group(group)) for group in sample]
    return Memory(
        group_bytes=used / groups,
        ledger_bytes=client.memory_usage(keys.ledger, samples=0) / groups,
        fifo_bytes=client.memory_usage(keys.fifo, samples=0) / groups,
        hash_bytes=median(hashes),
    )


def _reference(run: str, round: int, index: int, version: WeightVersion) -> GroupRef:
    """What a group's announcement would say."""
    sha256 = hashlib.sha256(f"{run} {round} {index}".encode()).hexdigest()
    group = make_group(run, round, index, version, TINY)
    key = group_key(run, round, index, sha256)
    return GroupRef(group.id, round, index, 1, 1, version, key, sha256, TINY.samples, group.tokens, 0.5, 0.5)


def _committed(index: int, members: Sequence[GroupRef]) -> TrainedUpdate:
    return TrainedUpdate(
        index=index,
        samples=sum(ref.samples for ref in members),
        tokens=sum(ref.tokens for ref in members),
        groups=tuple(
            TrainedGroup(
                group=ref.group,
                attempt=ref.attempt,
                object=ref.object,
                sha256=ref.sha256,
                samples=ref.samples,
                tokens=ref.tokens,
            )
            for ref in members
        ),
    )

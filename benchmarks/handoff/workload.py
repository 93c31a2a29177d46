"""What is handed over: groups of 16 samples x 512 response tokens, in a run prepared as rollout prepares one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.data.models import POINTER_WALK, resolve_model
from rolloutpipe_core.domain import FinishReason, Group, Sample, VersionSpan, WeightVersion, group_id
from rolloutpipe_core.gate import Expectation
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.rollout import Cohort
from rolloutpipe_core.preparation import prepare_run, register_run
from rolloutpipe_core.store.commits import Link
from rolloutpipe_core.store.objects import ObjectStore

SAMPLES, RESPONSE_TOKENS, PROMPT_TOKENS = 16, 512, 64
VOCABULARY = 50_000
BUCKET = "rolloutpipe-bench"
DEADLINE_S = 60.0
LEASE_S = 3600.0
DATA = "bench"  # the data's fingerprint


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a group."""

    samples: int = SAMPLES
    response_tokens: int = RESPONSE_TOKENS
    prompt_tokens: int = PROMPT_TOKENS


def make_config(run: str, groups_per_round: int, samples: int = SAMPLES, rounds: int = 1, update: int = 1) -> RunConfig:
    """A configuration with updates of `update` groups."""
    schedule = {
        "kind": "cgp",
        "rounds": rounds,
        "groups_per_round": groups_per_round,
        "samples_per_group": samples,
        "update_batch_size": samples * update,
    }
    facts = {"run": run, "bucket": BUCKET, "model": {"path": POINTER_WALK}, "schedule": schedule}
    return RunConfig.model_validate({**facts, "data": {"max_prompt_tokens": 256}})


def prepare(config: RunConfig, connections: Connections) -> tuple[Link, LedgerClient, ObjectStore]:
    """Make the run: version 0, genesis, Redis."""
    store = ObjectStore(connections.s3.client(), config.bucket, DEADLINE_S)
    store.ensure_bucket()
    client = LedgerClient(connections.redis.client(), config.run, DEADLINE_S)
    head = prepare_run(config, resolve_model(config.model.path), DATA, store)
    register_run(client, head, "bench")
    return head, client, store


def cohort(config: RunConfig, round: int, version: WeightVersion) -> Cohort:
    size = config.schedule.groups_per_round
    groups = tuple(group_id(round, index) for index in range(size))
    places = (round * size, (round + 1) * size)
    return Cohort(round, 1, version, groups, tuple(f"p{place}" for place in range(*places)), "c" * 64, DATA, *places)


def make_group(run: str, round: int, index: int, version: WeightVersion, shape: Shape, attempt: int = 1) -> Group:
    """A group that passes the gate, with tokens of its own."""
    random = np.random.default_rng([round, index])
    return Group(
        run=run,
        lineage=1,
        round=round,
        index=index,
        attempt=attempt,
        version=version,
        prompt_id=f"p{index}",
        samples=tuple(_sample(random, place, version, shape) for place in range(shape.samples)),
    )


def expectation(config: RunConfig, version: WeightVersion) -> Expectation:
    """What the rollout side holds a first attempt to."""
    return Expectation(config.run, 1, version, config.schedule.samples_per_group, attempt=1)


def _sample(random: np.random.Generator, index: int, version: WeightVersion, shape: Shape) -> Sample:
    length = shape.response_tokens
    return Sample(
        index=index,
        prompt_ids=random.integers(0, VOCABULARY, shape.prompt_tokens, dtype=np.int32),
        response_ids=random.integers(0, VOCABULARY, length, dtype=np.int32),
        behavior_logprobs=-random.exponential(1.0, length).astype(np.float32),
        loss_mask=np.ones(length, np.uint8),
        reward=float(index % 2),
        advantage=float(index % 2) - 0.5,
        finish_reason=FinishReason.LENGTH,
        spans=(VersionSpan(version, 0, length),),
    )

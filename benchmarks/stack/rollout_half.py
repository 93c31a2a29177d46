"""Rounds of the rollout service over one SGLang server, and the same requests by a bare client, in turns.

The service is the real one: admission, ledger in Redis, verifiers, groups in S3, announcements; there is no trainer.
Its round lasts from its opening until it is drained, by the ledger's clock. The bare client sends the same prompts K
times with the same sampling parameters, as many at once, and reads nothing but the number of tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
from rolloutpipe_components.rollout.engines.sglang.deadlines import Deadlines
from rolloutpipe_components.rollout.engines.sglang.engine import SglangEngine
from rolloutpipe_components.rollout.engines.sglang.model_facts import read_facts
from rolloutpipe_components.rollout.group import GroupServer
from rolloutpipe_components.rollout.service import RolloutParts, RolloutService
from rolloutpipe_components.rollout.tokenize import PromptTokenizer

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.data.load import load_prompts
from rolloutpipe_core.data.models import resolve_model
from rolloutpipe_core.data.prompts import PromptSet, cohort
from rolloutpipe_core.domain import GroupState, RoundState
from rolloutpipe_core.errors import DeadlineExceeded, RolloutPipeError
from rolloutpipe_core.ledger.beacon import Beacon
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.events import Event, GroupMoved, RoundMoved
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.rollout import RolloutLedger
from rolloutpipe_core.preparation import prepare_run, register_run
from rolloutpipe_core.rewards.pool import VerifierPool
from rolloutpipe_core.store.cache import DirectoryCache
from rolloutpipe_core.store.objects import ObjectStore

from ..sglang_frontier.measure import Load, bare
from .pairs import Pair

BUCKET = "rolloutpipe-bench"
ROUND_S = 300.0
POLL_S = 0.02
ON_CPU = ("--mem-fraction-static", "0.1", "--max-total-tokens", "65536", "--context-length", "512")


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a round."""

    groups: int  # R
    samples: int  # K
    slots: int  # samples at once
    turns: int  # measured, behind one to warm up


def make_config(run: str, python: str, model: str, shape: Shape) -> RunConfig:
    """One round of the pointer walk, all groups admitted at once."""
    launch = {"replicas": 1, "python": python, "arguments": ON_CPU}
    return RunConfig.model_validate(
        {
            "run": run,
            "bucket": BUCKET,
            "model": {"path": model},
            "data": {"max_prompt_tokens": 256},
            "schedule": {
                "kind": "cgp",
                "rounds": 1,
                "groups_per_round": shape.groups,
                "samples_per_group": shape.samples,
                "update_batch_size": 2 * shape.samples,
            },
            "sampling": {"max_new_tokens": 96},
            "engine": {"kind": "sglang", "slots": shape.slots, "launch": launch},
            "deadlines": {"engine_s": ROUND_S},
        }
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """What stays from turn to turn."""

    connections: Connections
    prompts: PromptSet
    engine: SglangEngine
    verifiers: VerifierPool
    cache: DirectoryCache


async def measure(connections: Connections, folder: Path, python: str, model: str, shape: Shape) -> list[Pair]:
    """Every turn has a run of its own. Which of the two begins alternates."""
    config = make_config("bench-0", python, model, shape)
    async with AsyncExitStack() as stack:
        deadlines = Deadlines.of(config.engine, ROUND_S)
        engine = SglangEngine(config.engine, config.model, deadlines, "bench", folder / "logs")
        stack.push_async_callback(engine.close)
        verifiers = await stack.enter_async_context(VerifierPool(config.rewards))
        cache = stack.enter_context(DirectoryCache(folder / "cache"))
        parts = Parts(connections, load_prompts(config.data), engine, verifiers, cache)
        pairs = []
        for turn in range(1 + shape.turns):
            numbered = config.model_copy(update={"run": f"bench-{turn}"})
            if turn % 2 == 0:  # the first one starts the server
                ours = await _service(parts, numbered)
                theirs = await _bare(parts, numbered)
            else:
                theirs = await _bare(parts, numbered)
                ours = await _service(parts, numbered)
            pairs.append(Pair(ours, theirs))
    return pairs[1:]


def tokens_a_second(events: Iterable[Event], groups: int) -> float:
    """Response tokens of the first round's groups over the time from its opening until it was drained.

    Raises RolloutPipeError when not all of its groups were announced.
    """
    tokens, announced, opened_ms, drained_ms = 0, 0, 0, 0
    for event in events:
        match event:
            case RoundMoved(after=RoundState.OPEN):
                opened_ms = event.at_ms
            case RoundMoved(after=RoundState.DRAINED):
                drained_ms = event.at_ms
            case GroupMoved(after=GroupState.QUEUED):
                announced += 1
                tokens += int(event.details["response_tokens"])
    if announced != groups or drained_ms <= opened_ms:
        raise RolloutPipeError("a round did not end whole", given=f"{announced} groups", expected=f"{groups} groups")
    return tokens / ((drained_ms - opened_ms) / 1000)


async def _service(parts: Parts, config: RunConfig) -> float:
    """Tokens a second of one round of a rollout worker."""
    client = LedgerClient(parts.connections.redis.client(), config.run, config.deadlines.redis_s)
    reader = LedgerReader(parts.connections.redis.client(), config.run, config.deadlines.redis_s)
    store = ObjectStore(parts.connections.s3.client(), config.bucket, config.deadlines.store_s)
    store.ensure_bucket()
    model = resolve_model(config.model.path)

    def restore() -> None:
        register_run(client, prepare_run(config, model, parts.prompts.fingerprint, store), "bench")

    restore()
    ledger = RolloutLedger(client, "bench", config.leases.lease_s, config.leases.max_attempts)
    tokenizer = PromptTokenizer(model, config.data)
    groups = GroupServer(config, ledger, store, parts.engine, parts.verifiers, tokenizer)
    with Beacon(client, "rollout", "bench", config.leases.heartbeat_s) as beacon:
        service = RolloutService(
            RolloutParts(
                config, ledger, reader, store, parts.engine, groups, parts.prompts, beacon, parts.cache, restore
            )
        )
        await _until_drained(asyncio.create_task(service.run()), reader)
    return tokens_a_second(reader.events(), config.schedule.groups_per_round)


async def _until_drained(worker: asyncio.Task[None], reader: LedgerReader) -> None:
    """Run a worker until its first round is drained. Raises what ended it before."""
    try:
        async with asyncio.timeout(ROUND_S):
            while reader.round_state(0).get("state") != RoundState.DRAINED:
                if worker.done():
                    worker.result()
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise DeadlineExceeded(f"a round takes longer than {ROUND_S:g} s") from None
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


async def _bare(parts: Parts, config: RunConfig) -> float:
    """Tokens a second of the same round by a client that does nothing else."""
    schedule, model = config.schedule, resolve_model(config.model.path)
    rows = cohort(config.seed, len(parts.prompts), 0, schedule.groups_per_round)
    tokenizer = PromptTokenizer(model, config.data)
    load = Load([tokenizer.encode(parts.prompts[row]) for row in rows], schedule.samples_per_group, config.sampling)
    urls = [replica.http.url for replica in parts.engine.replicas]
    async with httpx.AsyncClient(trust_env=False) as http:
        for url in urls:  # as a load does, before the service's round
            (await http.post(f"{url}/flush_cache")).raise_for_status()
    return (await bare(urls, config.engine.slots, sorted(read_facts(model).eos_ids), load)).tokens_s

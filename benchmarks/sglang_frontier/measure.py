"""One round of groups over the same servers, in each way; when every group was complete."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from statistics import mean, median

import httpx
from rolloutpipe_components.rollout.engines.sglang.client import KEEP_ALIVE_S
from rolloutpipe_components.rollout.engines.sglang.completion import request_body, sampling_params
from rolloutpipe_components.rollout.engines.sglang.engine import SglangEngine

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.domain import group_id
from rolloutpipe_core.noise import sample_seed
from rolloutpipe_core.schedule import AdmissionPolicy, admissible

POLL_S = 0.05
"""As in the rollout service."""
WIDTH = 2
"""F_w."""

Way = Callable[[], Awaitable["Round"]]


@dataclass(frozen=True, slots=True)
class Round:
    """One round in one way. Times are seconds since its start."""

    complete_s: tuple[float, ...]  # by submission order
    tokens: int

    @property
    def tokens_s(self) -> float:
        return self.tokens / max(self.complete_s)

    @property
    def by_completion_s(self) -> float:
        """Mean time at which the n-th group was complete, whichever it was: `order: completion`."""
        return mean(self.complete_s)

    @property
    def by_submission_s(self) -> float:
        """Mean time at which a group and all before it were complete: `order: submission`."""
        return mean(accumulate(self.complete_s, max))


@dataclass(frozen=True, slots=True)
class Summary:
    """Medians over the turns."""

    tokens_s: float
    by_completion_s: float
    by_submission_s: float

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Summary:
        return cls(
            median(one.tokens_s for one in rounds),
            median(one.by_completion_s for one in rounds),
            median(one.by_submission_s for one in rounds),
        )


@dataclass(frozen=True, slots=True)
class Load:
    """What all ways serve."""

    prompts: Sequence[Sequence[int]]
    samples: int  # K
    sampling: SamplingConfig

    def seeds(self, group: int) -> list[int]:
        return [sample_seed(0, 0, group, place) for place in range(self.samples)]


async def admitted(engine: SglangEngine, load: Load) -> Round:
    """As the rollout service does: what `admissible` says, looked at every POLL_S and when a group is complete."""
    names = [group_id(0, index) for index in range(len(load.prompts))]
    policy, wake = AdmissionPolicy(width=WIDTH, fill=True, share=None), asyncio.Event()
    complete: dict[str, float] = {}
    tokens, tasks = [0], dict[str, asyncio.Task[None]]()
    start = time.perf_counter()

    async def serve(name: str) -> None:
        answered = await _group(engine, load, names.index(name))
        tokens[0] += answered  # in one step: read before the answer came, the sum would lose others'
        complete[name] = time.perf_counter() - start
        wake.set()

    while len(complete) < len(names):
        open = [name for name in names if name not in complete]
        chosen = admissible(
            open,
            {name for name in open if name not in tasks},
            policy,
            held=len(tasks) - len(complete),
            spare_slots=engine.spare_slots(),
            samples_per_group=load.samples,
        )
        tasks |= {name: asyncio.create_task(serve(name)) for name in chosen}
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await wake.wait()
        wake.clear()
        for task in tasks.values():
            if task.done():
                task.result()
    return Round(tuple(complete[name] for name in names), tokens[0])


async def all_at_once(engine: SglangEngine, load: Load) -> Round:
    """All groups sent; whoever queues them has their order."""
    start = time.perf_counter()

    async def serve(index: int) -> tuple[float, int]:
        tokens = await _group(engine, load, index)
        return time.perf_counter() - start, tokens

    served = await asyncio.gather(*map(serve, range(len(load.prompts))))
    return Round(tuple(seconds for seconds, _ in served), sum(tokens for _, tokens in served))


async def bare(urls: Sequence[str], slots: int, stop_ids: Sequence[int], load: Load) -> Round:
    """The same requests by a client that does nothing else: no admission, no checks, no ids in the answers read."""
    gate, start = asyncio.Semaphore(slots), time.perf_counter()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE_S)
    async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as http:

        async def one(index: int, place: int, seed: int) -> int:
            params = sampling_params(load.sampling, stop_ids, seed)
            body = request_body(load.prompts[index], params, f"bare-{start}-{index}-{place}")
            async with gate:
                answer = await http.post(f"{urls[place % len(urls)]}/generate", json=body)
            tokens: int = answer.json()["meta_info"]["completion_tokens"]
            return tokens

        async def serve(index: int) -> tuple[float, int]:
            tokens = await asyncio.gather(*(one(index, *each) for each in enumerate(load.seeds(index))))
            return time.perf_counter() - start, sum(tokens)

        served = await asyncio.gather(*map(serve, range(len(load.prompts))))
    return Round(tuple(seconds for seconds, _ in served), sum(tokens for _, tokens in served))


async def _group(engine: SglangEngine, load: Load, index: int) -> int:
    """Tokens of a group's responses."""
    samples = await engine.generate(load.prompts[index], load.sampling, load.seeds(index), index)
    return sum(len(sample.response_ids) for sample in samples)

"""Engine `sglang`: the samples of a call, one by one, at whichever servers serve.

    generate ──K samples──> admission (lowest priority first) ──> least loaded server ──> answer ──> completion
                  ^                                                       │ lost, aborted, cut off, other weights
                  └──────────────── again, elsewhere ─────────────────────┘

Every sample is a request of its own: it is counted, aborted and tried again alone, and has its own seed. It waits for
a slot, then for its server; both within the call's deadline, after which the reasons are told.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from rolloutpipe_core.config.models import EngineConfig, ModelConfig, SamplingConfig
from rolloutpipe_core.domain import Completion, WeightVersion
from rolloutpipe_core.errors import EngineFailure

from ..calls import check_call
from .admission import Admission, Family
from .completion import completion_of, request_body, sampling_params
from .deadlines import Deadlines
from .failures import Broken, Lost, Refused, Unreachable, Unusable, WrongVersion
from .fleet import Fleet
from .model_facts import ModelFacts, read_facts
from .process import LaunchedServer, LaunchPlan
from .replica import Note, Replica, Waiting
from .routing import SHARED_PROMPT_TOKENS
from .terms import Terms
from .weights import Weights

log = logging.getLogger("rolloutpipe.sglang")

SAMPLE_TRIES = 3
"""Of a sample whose answers cannot be used. What happens to its server instead costs it no try."""
ALL = 1 << 30
"""Spare slots where the servers queue what they cannot run yet."""


@dataclass(eq=False, slots=True)
class _Call:
    """One call of `generate`."""

    rid: str  # the ids of its requests begin so
    prompt_ids: Sequence[int]
    sampling: SamplingConfig
    stop_ids: Sequence[int]
    weights: Weights
    family: Family
    last_loss: str = ""  # why a sample last had to go elsewhere


class SglangEngine:
    """Implements `Engine`."""

    def __init__(
        self,
        engine: EngineConfig,
        model: ModelConfig,
        deadlines: Deadlines,
        name: str = "sglang",
        logs: Path = Path(),
        waiting: Waiting = lambda _what, _deadline_s: nullcontext(),
        note: Note = lambda _server, _what: None,
    ) -> None:
        """Servers are started by the first `load`, which must then run in the main thread.

        `name` and `logs` are those of started servers; `waiting` shows a server that is out; `note` takes
        what goes wrong with one, for the history.
        """
        self._config = engine
        self._deadlines = deadlines
        replicas = _replicas(engine, model, deadlines, name, logs, waiting, note)
        unlimited = engine.frontier_by == "priority"
        self._admission = Admission(replicas, None if unlimited else -(-engine.slots // len(replicas)))
        self._fleet = Fleet(replicas, deadlines, self._admission.dispatch)
        self._facts: ModelFacts | None = None
        self._closed = False

    @property
    def version(self) -> WeightVersion | None:
        """The loaded version; None before the first load and after one that failed."""
        return self._fleet.terms.weights.version if self._fleet.terms else None

    @property
    def replicas(self) -> Sequence[Replica]:
        """The servers."""
        return self._fleet.replicas

    async def load(self, version: WeightVersion, directory: Path) -> None:
        """See `Engine.load`. The first load starts the servers, where they are ours."""
        if self._closed:
            raise _closed()
        if in_flight := sum(replica.in_flight for replica in self.replicas):
            raise EngineFailure("weights cannot change now", given=f"{in_flight} samples in flight")
        weights = Weights(version, directory.resolve())
        facts = read_facts(weights.directory)
        await self._fleet.load(Terms(weights, self._config.frontier_by == "priority", facts.max_positions))
        self._facts = facts

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, seeds: Sequence[int], priority: int
    ) -> list[Completion]:
        """See `Engine.generate`. Raises BadInput for a call that the model cannot take: a server would die of it."""
        terms, facts = self._fleet.terms, self._facts
        if self._closed:
            raise _closed()
        if terms is None or facts is None:
            raise EngineFailure("the engine holds no weights", remedy="load a version; the last load may have failed")
        check_call(replace(facts, max_positions=terms.positions), prompt_ids, sampling, seeds)
        together = len(prompt_ids) >= SHARED_PROMPT_TOKENS
        stop_ids = sorted(facts.eos_ids | set(sampling.stop_ids))
        family = Family(priority, together)
        call = _Call(secrets.token_hex(8), [int(id) for id in prompt_ids], sampling, stop_ids, terms.weights, family)
        samples = [asyncio.create_task(self._sample(call, place, seed)) for place, seed in enumerate(seeds)]
        try:
            async with asyncio.timeout(self._deadlines.answer_s):
                return list(await asyncio.gather(*samples))
        except TimeoutError:
            missing = sum(not sample.done() or sample.cancelled() for sample in samples)
            raise EngineFailure(
                f"{missing} of {len(seeds)} samples have no answer after {self._deadlines.answer_s:g} s",
                given=f"{self._fleet}; last lost: {call.last_loss or 'none'}",
                remedy="see the servers' logs, or raise deadlines.engine_s",
            ) from None
        finally:
            for sample in samples:
                sample.cancel()
            await asyncio.gather(*samples, return_exceptions=True)

    def spare_slots(self) -> int:
        """See `Engine.spare_slots`."""
        spare = self._admission.spare()
        return ALL if spare is None else spare

    async def close(self) -> None:
        """See `Engine.close`. Servers that the engine started end with it."""
        self._closed = True
        await self._fleet.close()

    async def _sample(self, call: _Call, place: int, seed: int) -> Completion:
        """One sample, until it is there. Raises EngineFailure when its answers are of no use again and again."""
        params = sampling_params(call.sampling, call.stop_ids, seed)
        useless: list[str] = []
        sent = 0
        while len(useless) < SAMPLE_TRIES:
            replica = await self._admission.enter(call.family)
            sent += 1
            try:
                rid = f"{call.rid}-{place}-{sent}"
                body = request_body(call.prompt_ids, params, rid, self._priority(call, replica))
                return await self._ask(replica, call, body)
            except (Lost, Unreachable) as failure:
                call.last_loss = str(failure)
                log.warning("a sample goes elsewhere: %s", failure)
            except WrongVersion as failure:
                useless.append(f"{replica.name}: {failure}")
                replica.held = None
                replica.out(str(failure))
            except Broken as failure:
                useless.append(f"{replica.name}: {failure}")
                replica.out(str(failure))
            except (Refused, Unusable) as failure:
                useless.append(f"{replica.name}: {failure}")
                log.warning("a sample is tried again: %s: %s", replica.name, failure)
                replica.note(f"a sample is tried again: {failure}")
            finally:
                self._admission.leave(replica)
        raise EngineFailure(f"a sample failed {SAMPLE_TRIES} times", given="; ".join(useless))

    async def _ask(self, replica: Replica, call: _Call, body: dict[str, object]) -> Completion:
        fence = replica.fence
        try:
            answer = await replica.ask(body)
        except Unreachable as failure:
            if replica.fence == fence:  # else it is known already
                replica.out(str(failure))
            raise
        return completion_of(answer, call.weights.version, fenced=replica.fence == fence and replica.serving)

    def _priority(self, call: _Call, replica: Replica) -> int | None:
        """The group's place in the server's sense; None where admission has ordered the samples already."""
        if self._config.frontier_by == "admission":
            return None
        low_first = replica.info.schedule_low_priority_values_first
        return call.family.priority if low_first else -call.family.priority


def _replicas(
    engine: EngineConfig, model: ModelConfig, deadlines: Deadlines, name: str, logs: Path, waiting: Waiting, note: Note
) -> list[Replica]:
    if engine.launch is None:
        return [Replica(url, deadlines, waiting, note, url, None) for url in engine.urls]
    plan = LaunchPlan.of(engine, model, logs)
    names = [f"{name}-sglang-{index}" for index in range(engine.launch.replicas)]
    return [Replica(each, deadlines, waiting, note, None, LaunchedServer(plan, each)) for each in names]


def _closed() -> EngineFailure:
    return EngineFailure("the engine is closed")

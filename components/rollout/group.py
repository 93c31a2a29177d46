"""One attempt of one group, from its prompt to its announcement."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import Group, Prompt, parse_group_id
from rolloutpipe_core.errors import EngineFailure
from rolloutpipe_core.gate import Expectation, why_rejected
from rolloutpipe_core.ledger.rollout import Cohort, Lease, RolloutLedger
from rolloutpipe_core.noise import sample_seed
from rolloutpipe_core.rewards.pool import VerifierPool
from rolloutpipe_core.rewards.score import Score
from rolloutpipe_core.store.groups import encode_group, reference_of
from rolloutpipe_core.store.objects import ObjectStore

from .engine import Engine
from .materialize import GroupIdentity, materialize
from .tokenize import PromptTokenizer

T = TypeVar("T")

log = logging.getLogger("rolloutpipe.rollout")


@dataclass(frozen=True, slots=True)
class RoundWork:
    """A round as a worker serves it."""

    cohort: Cohort
    prompt: Callable[[int], Prompt]  # by submission order; behind the cohort's come those that replace others


@dataclass(frozen=True, slots=True)
class GroupServer:
    """Serves groups with the engine's present weights. One instance serves any number of groups at once."""

    config: RunConfig
    ledger: RolloutLedger
    store: ObjectStore
    engine: Engine
    verifiers: VerifierPool
    tokenizer: PromptTokenizer

    async def serve(self, work: RoundWork, lease: Lease, serving_complete: Callable[[], None]) -> None:
        """Generate, score, materialize, upload, announce. `serving_complete` is called when the frontier's slot frees.

        Raises Fenced or LedgerRefused when the lease was lost, EngineFailure or VerifierFailure when the attempt
        failed.
        """
        schedule, sampling = self.config.schedule, self.config.sampling
        _, index = parse_group_id(lease.group)
        prompt = work.prompt(index)
        prompt_ids = self.tokenizer.encode(prompt)
        places = range(schedule.samples_per_group)
        seeds = [sample_seed(self.config.seed, work.cohort.round, index, place) for place in places]
        answer = self.engine.generate(prompt_ids, sampling, seeds, priority=index)
        completions = await within(self.config.deadlines.engine_s, answer, f"the engine's answer for {lease.group}")
        self.ledger.serving_complete(lease)
        serving_complete()

        texts = [self.tokenizer.decode(completion.response_ids) for completion in completions]
        scores = await self.verifiers.score(prompt, texts)
        _tell_unjudged(lease.group, scores)
        identity = self._identity(work.cohort, lease, index, prompt)
        loss = self.config.loss
        group, statistics = materialize(
            identity, prompt_ids, completions, texts, scores, loss.advantage, loss.advantage_eps
        )
        self.ledger.materialized(lease)
        if statistics.zero_variance and schedule.zero_variance != "keep":
            tokens = sum(len(sample.response_ids) for sample in group.samples)
            facts = {"reward_mean": statistics.mean, "reward_std": 0, "response_tokens": tokens}
            self.ledger.filtered(lease, "zero variance of rewards", facts, partial(self._drawn, work))
            return
        size = schedule.samples_per_group
        expected = Expectation(self.config.run, work.cohort.lineage, work.cohort.version, size, lease.attempt)
        await hand_over(self.ledger, self.store, lease, group, expected)

    def _drawn(self, work: RoundWork, index: int) -> str | None:
        """Prompt of the round's group with this submission order; None where it draws no more."""
        return work.prompt(index).id if index < self.config.schedule.most_groups else None

    def _identity(self, cohort: Cohort, lease: Lease, index: int, prompt: Prompt) -> GroupIdentity:
        return GroupIdentity(
            run=self.config.run,
            lineage=cohort.lineage,
            round=cohort.round,
            index=index,
            attempt=lease.attempt,
            version=cohort.version,
            prompt_id=prompt.id,
        )


async def hand_over(
    ledger: RolloutLedger, store: ObjectStore, lease: Lease, group: Group, expected: Expectation
) -> None:
    """Upload a materialized group, then announce it; what would not pass the trainer's gate is not published.

    Raises EngineFailure for the latter, Fenced or LedgerRefused when the lease was lost.
    """
    data = encode_group(group)
    ref = reference_of(group, data)
    reason = why_rejected(group, ref, expected)
    if reason is not None:
        raise EngineFailure("the engine's answer would not pass the gate", given=reason)
    await asyncio.to_thread(store.put, ref.object, data)
    lengths = [len(sample.response_ids) for sample in group.samples]
    ledger.announce(lease, ref, sum(lengths), max(lengths))


def _tell_unjudged(group: str, scores: Sequence[Score]) -> None:
    """A verifier that fails looks like a model that learns nothing: say so where its user looks first."""
    reasons = Counter(score.reason for score in scores if not score.judged)
    for reason, count in reasons.items():
        log.warning("%s: %d of %d responses got no verdict and score 0: %s", group, count, len(scores), reason)


async def within(deadline_s: float, call: Awaitable[T], what: str) -> T:
    """An engine call with its deadline: missing it is the engine's failure, and the group is tried again."""
    try:
        async with asyncio.timeout(deadline_s):
            return await call
    except TimeoutError:
        raise EngineFailure(f"waited {deadline_s:g} s for {what}", remedy="raise deadlines.engine_s") from None

"""Group materialization (paper, section 2): K completions and their scores become a trainable group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rolloutpipe_core.advantage import AdvantageKind, GroupStatistics, group_statistics
from rolloutpipe_core.domain import Completion, Group, Sample, WeightVersion
from rolloutpipe_core.rewards.score import Score


@dataclass(frozen=True, slots=True)
class GroupIdentity:
    """Which attempt of which group of which run it is."""

    run: str
    lineage: int
    round: int
    index: int
    attempt: int
    version: WeightVersion
    prompt_id: str


def materialize(
    identity: GroupIdentity,
    prompt_ids: Sequence[int],
    completions: Sequence[Completion],
    texts: Sequence[str],
    scores: Sequence[Score],
    kind: AdvantageKind,
    eps: float,
) -> tuple[Group, GroupStatistics]:
    """The group with advantages and loss masks, and its statistics. All sequences have length K."""
    statistics = group_statistics([score.value for score in scores], kind, eps)
    prompt = np.asarray(prompt_ids, dtype=np.int32)
    samples = tuple(
        Sample(
            index=index,
            prompt_ids=prompt,
            response_ids=completion.response_ids,
            behavior_logprobs=completion.behavior_logprobs,
            loss_mask=np.ones(len(completion.response_ids), dtype=np.uint8),
            reward=score.value,
            advantage=advantage,
            finish_reason=completion.finish_reason,
            spans=completion.spans,
            text=text,
            reason=score.reason,
        )
        for index, (completion, text, score, advantage) in enumerate(
            zip(completions, texts, scores, statistics.advantages, strict=True)
        )
    )
    group = Group(
        run=identity.run,
        lineage=identity.lineage,
        round=identity.round,
        index=identity.index,
        attempt=identity.attempt,
        version=identity.version,
        prompt_id=identity.prompt_id,
        samples=samples,
    )
    return group, statistics

"""What the frontier's benchmark computes from what it measured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from rolloutpipe_benchmarks.sglang_frontier.measure import Load, Round, Summary, admitted
from rolloutpipe_components.rollout.engines.sglang.engine import SglangEngine

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.domain import Completion, FinishReason


def test_by_submission_a_group_waits_for_all_before_it() -> None:
    found = Round(complete_s=(3.0, 1.0, 4.0, 2.0), tokens=80)
    assert found.tokens_s == 20
    assert found.by_completion_s == pytest.approx(2.5)
    assert found.by_submission_s == pytest.approx((3 + 3 + 4 + 4) / 4)


def test_medians_over_the_turns() -> None:
    turns = [Round((1.0, 2.0), 10), Round((2.0, 2.0), 40), Round((4.0, 1.0), 40)]
    assert Summary.of(turns) == Summary(tokens_s=10, by_completion_s=2.0, by_submission_s=2.0)


class Overlapping:
    """An engine whose groups are all under way at once, the later ones shorter."""

    def __init__(self, groups: int) -> None:
        self._groups, self._open, self._all = groups, 0, asyncio.Event()

    async def generate(self, _prompt: Any, _sampling: Any, seeds: Sequence[int], index: int) -> list[Completion]:
        self._open += 1
        if self._open == self._groups:
            self._all.set()
        await self._all.wait()
        for _ in range(self._groups - index):
            await asyncio.sleep(0)
        ids = np.zeros(index + 1, np.int32)
        return [Completion(ids, np.zeros(len(ids), np.float32), FinishReason.STOP, ()) for _ in seeds]

    def spare_slots(self) -> int:
        return 1000


def test_tokens_of_groups_that_overlap_are_all_counted() -> None:
    groups, samples = 4, 2
    load = Load([[5]] * groups, samples, SamplingConfig(max_new_tokens=8))

    async def scenario() -> Round:
        return await asyncio.wait_for(admitted(cast(SglangEngine, Overlapping(groups)), load), 60)

    found = asyncio.run(scenario())
    assert found.tokens == samples * (1 + 2 + 3 + 4)
    assert len(found.complete_s) == groups

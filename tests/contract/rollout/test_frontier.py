"""Frontier-group dispatch by real workers, seen in the ledger: its width, its order, and when a slot frees."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from rolloutpipe_components.rollout.engine import Engine

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.domain import Completion, GroupState, group_id
from rolloutpipe_core.ledger.events import GroupMoved

from .conftest import BreakingEngine, HoldingEngine, MakeRig

GROUPS, WIDTH = 8, 2
IN_SERVICE = {"groups_per_round": GROUPS, "frontier_width": WIDTH, "samples_per_group": 2, "update_batch_size": 4}


def widths(moves: Sequence[GroupMoved]) -> list[int]:
    """How many groups were in service after each move. Fails when an admission was not within the frontier."""
    open, serving, found = [group_id(0, index) for index in range(GROUPS)], set[str](), []
    for move in moves:
        match move.after:
            case GroupState.ADMITTED:
                assert move.group in sorted(open)[:WIDTH], f"{move.group} of {sorted(open)}"
                serving.add(move.group)
            case GroupState.SERVING_COMPLETE:
                open.remove(move.group)
                serving.remove(move.group)
            case GroupState.DEFERRED if move.before is not None:
                serving.discard(move.group)
                open += [] if move.group in open else [move.group]
        found.append(len(serving))
    return found


class PartnerEngine(BreakingEngine):
    """Its first answer waits for the partner's first."""

    def __init__(self, engine: Engine, failures: dict[int, int], partners: asyncio.Barrier) -> None:
        super().__init__(engine, failures)
        self.partners = partners

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, seeds: Sequence[int], priority: int
    ) -> list[Completion]:
        if not self.calls:
            self.calls[priority] = 0
            await self.partners.wait()
        return await super().generate(prompt_ids, sampling, seeds, priority)


@pytest.mark.parametrize("breaking", [{}, {1: 1, 4: 2}], ids=["undisturbed", "with failures"])
def test_two_workers_together_keep_to_a_hard_frontier(make_rig: MakeRig, breaking: dict[int, int]) -> None:
    rig = make_rig(schedule=IN_SERVICE, leases={"max_attempts": 9}, rollout_workers=2)
    partners = asyncio.Barrier(2)

    def wrap(engine: Engine) -> PartnerEngine:
        return PartnerEngine(engine, breaking, partners)

    async def scenario() -> None:
        async with rig.worker("worker-0", wrap=wrap) as first, rig.worker("worker-1", wrap=wrap) as second:
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.train()
            await asyncio.gather(first.finish(), second.finish())

    asyncio.run(scenario())
    moves = rig.moves()
    assert max(widths(moves)) == WIDTH
    admissions = [move.group for move in moves if move.after is GroupState.ADMITTED]
    assert len(admissions) == len(set(admissions)) + sum(move.reason != "" for move in moves), "each served once"
    if not breaking:
        assert admissions == sorted(admissions), "lowest order first"


def test_a_slot_frees_at_serving_complete_and_not_with_the_reward(make_rig: MakeRig, gate: Path) -> None:
    """Frontier of one group, and a verifier that is held back: all groups are served before the first is scored."""
    rig = make_rig(schedule={"frontier_width": 1}, rewards={"verifier": "gated_verifier:verify", "deadline_s": 60})
    (gate / "closed").touch()

    async def scenario() -> None:
        async with rig.worker():
            await rig.until(lambda: set(rig.states()) == {GroupState.SERVING_COMPLETE})
            (gate / "closed").unlink()
            await rig.until(lambda: rig.round_is("drained"))

    asyncio.run(scenario())


def test_no_slot_frees_before_serving_complete(make_rig: MakeRig) -> None:
    """The engine keeps the answers of groups 0 and 5: the others pass by 0, and then nothing moves any more."""
    rig = make_rig(schedule=IN_SERVICE)

    async def scenario() -> None:
        async with rig.worker(wrap=lambda engine: HoldingEngine(engine, [0, 5])) as worker:
            await rig.until(lambda: worker.engine.holds == 2)
            states = rig.states()
            assert states[0] == states[5] == GroupState.ADMITTED
            assert states[6:] == [GroupState.DEFERRED] * 2
            worker.engine.go.set()
            await rig.until(lambda: rig.round_is("drained"))

    asyncio.run(scenario())
    assert max(widths(rig.moves())) == WIDTH


class FullEngine(HoldingEngine):
    """Holds every answer, and counts a held sample's slot as taken."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, range(GROUPS))
        self.looks = 0

    def spare_slots(self) -> int:
        self.looks += 1
        return max(0, 8 - 2 * self.calls.total())


def test_fill_takes_the_frontier_first_and_the_slots_that_would_idle(make_rig: MakeRig) -> None:
    """8 slots hold the frontier's two groups of two samples, and two groups beyond it."""
    rig = make_rig(schedule={**IN_SERVICE, "frontier_mode": "fill"}, engine={"slots": 8})

    async def scenario() -> None:
        async with rig.worker(wrap=FullEngine) as worker:
            await rig.until(lambda: worker.engine.holds == 4)
            looks = worker.engine.looks
            await rig.until(lambda: worker.engine.looks > looks + 3)
            assert rig.states() == [GroupState.ADMITTED] * 4 + [GroupState.DEFERRED] * 4
            worker.engine.go.set()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["cgp", "serial"])
def test_all_at_once_divides_the_round_between_the_workers(make_rig: MakeRig, kind: str) -> None:
    rig = make_rig(schedule={**IN_SERVICE, "kind": kind}, rollout_workers=2)

    def hold_all(engine: Engine) -> HoldingEngine:
        return HoldingEngine(engine, range(GROUPS))

    async def scenario() -> None:
        async with rig.worker("worker-0", wrap=hold_all), rig.worker("worker-1", wrap=hold_all):
            await rig.until(lambda: rig.states() == [GroupState.ADMITTED] * GROUPS)
            workers = [row["worker"] for row in rig.reader.groups(0)]
            assert (workers.count("worker-0"), workers.count("worker-1")) == (GROUPS // 2, GROUPS // 2)

    asyncio.run(scenario())


def test_a_worker_whose_partner_is_missing_serves_the_round_alone(make_rig: MakeRig) -> None:
    rig = make_rig(schedule={**IN_SERVICE, "kind": "cgp"}, rollout_workers=2)

    async def scenario() -> None:
        async with rig.worker():
            await rig.until(lambda: rig.round_is("drained"))

    asyncio.run(scenario())

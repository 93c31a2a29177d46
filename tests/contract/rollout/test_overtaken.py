"""A worker that stands still between its look at the run and the opening of its round: the run went on meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from rolloutpipe_core.config.models import ScheduleConfig
from rolloutpipe_core.errors import RunStopped
from rolloutpipe_core.ledger.rollout import Cohort, RolloutLedger

from .conftest import MakeRig, Rig


def overtaken(rig: Rig, meanwhile: object) -> type[RolloutLedger]:
    """A ledger whose first opening of a round comes after `meanwhile(cohort, schedule)`."""
    pending = [meanwhile]

    class Overtaken(RolloutLedger):
        def open_round(self, cohort: Cohort, schedule: ScheduleConfig) -> None:
            while pending:
                pending.pop()(cohort, schedule)  # type: ignore[operator]
            super().open_round(cohort, schedule)

    return Overtaken


def test_the_run_was_stopped(rig: Rig) -> None:
    def stop(cohort: Cohort, schedule: ScheduleConfig) -> None:
        rig.trainer.ledger.stop("a reason")

    async def scenario() -> None:
        async with rig.worker(ledger=overtaken(rig, stop)) as worker:
            await worker.finish()

    with pytest.raises(RunStopped, match="a reason"):
        asyncio.run(scenario())


def test_others_served_the_round_and_it_is_forgotten(make_rig: MakeRig) -> None:
    rig = make_rig(schedule={"rounds": 2})

    def go_on(cohort: Cohort, schedule: ScheduleConfig) -> None:
        other = RolloutLedger(rig.client, "other", 60, 9)
        other.open_round(cohort, schedule)
        for group in cohort.groups:
            lease = other.admit(group)
            other.serving_complete(lease)
            other.materialized(lease)
            other.filtered(lease, "not needed here", {})
        rig.trainer.train()
        rig.redis.delete(rig.client.keys.round(0))

    async def scenario() -> None:
        async with rig.worker(ledger=overtaken(rig, go_on)) as worker:
            await rig.until(lambda: rig.round_is("drained", 1))
            rig.trainer.train(1)
            await worker.finish()

    asyncio.run(scenario())
    assert rig.reader.run_state()["version"] == "2"

"""Rollout workers under `zero_variance: refill`: what is drawn is served like any other group, by any worker."""

from __future__ import annotations

import asyncio

from rolloutpipe_core.data.prompts import cohort, cohort_sha
from rolloutpipe_core.domain import GroupState

from .conftest import MakeRig, R, Rig

REFILL = {"zero_variance": "refill", "samples_per_group": 2, "update_batch_size": 4}


def sequence(rig: Rig, cursor: int, count: int) -> list[str]:
    """Prompt ids of these places of the run's seeded sequence."""
    return [rig.prompts[row].id for row in cohort(rig.config.seed, len(rig.prompts), cursor, count)]


def test_two_workers_refill_a_round_with_the_next_prompts_of_the_sequence(make_rig: MakeRig) -> None:
    rig = make_rig(schedule={**REFILL, "refill_limit": 8}, rollout_workers=2)

    async def scenario() -> None:
        async with rig.worker() as first, rig.worker("worker-1") as second:
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.train()
            await first.finish()
            await second.finish()

    asyncio.run(scenario())
    rows = rig.reader.groups(0)
    states = [row["state"] for row in rows]
    assert states.count(GroupState.TRAINED) == R
    assert states.count(GroupState.FILTERED) == len(rows) - R > 0
    assert states[-1] == GroupState.TRAINED, "the smallest prefix with R kept groups"
    assert [row["prompt"] for row in rows] == sequence(rig, 0, len(rows))
    for index, row in enumerate(rows):
        assert [group.prompt_id for group in rig.stored(index)] == [row["prompt"]] * (row["state"] == "trained")
        assert (float(row["reward_std"]) == 0) == (row["state"] == "filtered")
    round = rig.reader.round_state(0)
    assert (round["cursor_end"], round["cohort_sha"]) == (str(len(rows)), cohort_sha(sequence(rig, 0, R)))
    head = rig.trainer.chain.head()
    assert head is not None
    assert head.commit.cursor == len(rows)


def test_a_worker_serves_what_another_drew_and_the_next_round_goes_on_behind_it(make_rig: MakeRig) -> None:
    """With one new token every reward is 0: the round draws all it may. Then Redis loses everything."""
    rig = make_rig(schedule={**REFILL, "refill_limit": 2, "rounds": 2}, sampling={"max_new_tokens": 1})

    async def first_round() -> None:
        async with rig.worker():
            await rig.until(lambda: len(rig.reader.groups(0)) > R)
        async with rig.worker("worker-1"):
            await rig.until(lambda: rig.round_is("drained"))

    async def second_round() -> None:
        async with rig.worker("worker-2"):
            await rig.until(lambda: rig.round_is("drained", 1))

    asyncio.run(first_round())
    rows = rig.reader.groups(0)
    assert [row["state"] for row in rows] == [GroupState.FILTERED] * 2 * R
    assert rows[-1]["worker"] == "worker-1"
    assert [row["prompt"] for row in rows] == sequence(rig, 0, 2 * R)
    assert ["replaced_by" in row for row in rows].count(True) == R, "at the limit a group is only filtered"
    rig.trainer.train()
    rig.redis.delete(*rig.redis.scan_iter(f"{rig.client.keys.prefix}*", count=1000))  # type: ignore[misc]
    rig.restore()
    asyncio.run(second_round())
    assert [row["prompt"] for row in rig.reader.groups(1)] == sequence(rig, 2 * R, 2 * R)

"""Attempts that fail for the infrastructure's sake: given back, tried again, and ended with a reason at last."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from rolloutpipe_components.rollout.engine import Engine

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.domain import Completion, GroupState, WeightVersion
from rolloutpipe_core.errors import BadInput, EngineFailure

from .conftest import BreakingEngine, MakeRig, R, Rig, WrappedEngine, replaced_spans


async def serve_round(rig: Rig, wrap: type[WrappedEngine] | None = None, **options: object) -> WrappedEngine:
    """One round by one worker, trained by hand."""
    async with rig.worker(wrap=wrap or WrappedEngine, **options) as worker:  # type: ignore[arg-type]
        await rig.until(lambda: rig.round_is("drained"))
        rig.trainer.train()
        await worker.finish()
        engine: WrappedEngine = worker.engine
        return engine


def test_a_group_on_which_the_engine_broke_is_served_again(rig: Rig) -> None:
    async def scenario() -> None:
        async with rig.worker(wrap=lambda engine: BreakingEngine(engine, {1: 2, 3: 1})) as worker:
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.train()
            await worker.finish()

    asyncio.run(scenario())
    rows = rig.reader.groups(0)
    assert [(row["state"], row["attempt"]) for row in rows] == [("trained", a) for a in ("1", "3", "1", "2")]
    reasons = [move.reason for move in rig.moves(1) if move.after is GroupState.DEFERRED]
    assert reasons == ["", *(f"the engine broke; given: group 1, try {n}" for n in (1, 2))]


def test_after_its_last_attempt_a_group_has_failed_and_the_round_goes_on(make_rig: MakeRig) -> None:
    rig = make_rig(leases={"max_attempts": 2}, schedule={"rounds": 2})

    async def scenario() -> None:
        async with rig.worker(wrap=lambda engine: BreakingEngine(engine, {2: 2})) as worker:
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.train()
            await rig.until(lambda: rig.round_is("drained", 1))
            rig.trainer.train(1)
            await worker.finish()

    asyncio.run(scenario())
    failed = rig.reader.group("r000000-g0002")
    assert failed["state"] == GroupState.FAILED
    assert failed["reason"] == "the engine broke; given: group 2, try 2 (attempt 2 of 2)"
    assert rig.states().count(GroupState.TRAINED) == R - 1
    assert rig.states(1) == [GroupState.TRAINED] * R


class SilentEngine(WrappedEngine):
    """Never answers the first call for group 1."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, seeds: Sequence[int], priority: int
    ) -> list[Completion]:
        completions = await super().generate(prompt_ids, sampling, seeds, priority)
        if priority == 1 and self.calls[1] == 1:
            await asyncio.Event().wait()
        return completions


def test_an_engine_that_does_not_answer_is_given_up_within_its_deadline(make_rig: MakeRig) -> None:
    rig = make_rig(deadlines={"engine_s": 3}, leases={"max_attempts": 9})
    asyncio.run(serve_round(rig, SilentEngine))
    reasons = [move.reason for move in rig.moves(1) if move.before is GroupState.ADMITTED]
    assert "waited 3 s for the engine's answer for r000000-g0001; do: raise deadlines.engine_s" in reasons
    assert rig.states() == [GroupState.TRAINED] * R


class DriftingEngine(WrappedEngine):
    """Says at its first try for group 2 that other weights have sampled it."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, seeds: Sequence[int], priority: int
    ) -> list[Completion]:
        completions = await super().generate(prompt_ids, sampling, seeds, priority)
        if priority == 2 and self.calls[2] == 1:
            return replaced_spans(completions, WeightVersion(0, "f" * 64))
        return completions


def test_what_another_version_sampled_is_not_published(rig: Rig) -> None:
    asyncio.run(serve_round(rig, DriftingEngine))
    (reason,) = [move.reason for move in rig.moves(2) if move.before is GroupState.MATERIALIZED and move.reason]
    assert reason.startswith(
        "the engine's answer would not pass the gate; given: sample 0: mixed versions: tokens 0 to"
    )
    (group,) = rig.stored(2)
    assert group.attempt == 2, "nothing of the first attempt is in the store"
    assert rig.states() == [GroupState.TRAINED] * R


class ForgetfulEngine(WrappedEngine):
    """Cannot load."""

    async def load(self, version: WeightVersion, directory: Path) -> None:
        raise EngineFailure("weights are missing", given=str(directory))


def test_a_worker_whose_engine_cannot_load_ends_with_the_reason(rig: Rig) -> None:
    with pytest.raises(EngineFailure, match="weights are missing"):
        asyncio.run(serve_round(rig, ForgetfulEngine))
    assert rig.reader.round_state(0) == {}


def test_a_prompt_that_cannot_be_served_ends_the_worker_and_its_groups_are_handed_back(make_rig: MakeRig) -> None:
    """The user's to mend: it is no failure of the group, and not tried again."""
    rig = make_rig(data={"max_prompt_tokens": 3})
    with pytest.raises(BadInput, match=r"expected: 1 to 3 tokens \(data\.max_prompt_tokens\)"):
        asyncio.run(serve_round(rig))
    assert rig.states() == [GroupState.DEFERRED] * R
    (reason,) = {row["reason"] for row in rig.reader.groups(0) if row.get("reason")}
    assert reason.startswith("the worker ended: ")
    assert "data.max_prompt_tokens" in reason


GATED = {"verifier": "gated_verifier:verify", "infrastructure_retries": 1}


def test_a_group_whose_verifier_has_no_workers_is_served_again(make_rig: MakeRig, gate: Path) -> None:
    rig = make_rig(rewards=GATED, leases={"max_attempts": 99})

    def given_up() -> list[str]:
        return [move.reason for move in rig.moves() if move.before is GroupState.SERVING_COMPLETE and move.reason]

    async def scenario() -> None:
        (gate / "closed").touch()
        async with rig.worker() as worker:
            await rig.until(lambda: GroupState.SERVING_COMPLETE in rig.states())
            (gate / "broken").touch()
            (gate / "closed").unlink()
            await rig.until(given_up)
            (gate / "broken").unlink()
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.train()
            await worker.finish()

    asyncio.run(scenario())
    assert given_up()[0].startswith("the verifier's pool cannot start a worker; given: exit status 3")
    assert rig.states() == [GroupState.TRAINED] * R


def test_a_verifier_that_stays_broken_fails_the_groups(make_rig: MakeRig, gate: Path) -> None:
    rig = make_rig(rewards=GATED, leases={"max_attempts": 1}, schedule={"groups_per_round": 2})

    async def scenario() -> None:
        (gate / "closed").touch()
        async with rig.worker() as worker:
            await rig.until(lambda: rig.states() == [GroupState.SERVING_COMPLETE] * 2)
            (gate / "broken").touch()
            (gate / "closed").unlink()
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.train()
            await worker.finish()

    asyncio.run(scenario())
    for row in rig.reader.groups(0):
        assert row["state"] == GroupState.FAILED
        assert "cannot start a worker" in row["reason"]
        assert row["reason"].endswith("(attempt 1 of 1)")


def test_a_group_that_the_trainer_rejects_after_the_drain_is_served_again_by_the_same_weights(rig: Rig) -> None:
    async def scenario() -> None:
        async with rig.worker() as worker:
            await rig.until(lambda: rig.round_is("drained"))
            damaged = next(entry for entry in rig.trainer.announced() if entry.ref.index == 2)
            assert rig.trainer.ledger.reject(damaged, "altered object", 2) == ("deferred", 2)
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.train()
            await worker.finish()
            assert len(worker.engine.loaded) == 1
            assert worker.engine.calls == {0: 1, 1: 1, 2: 2, 3: 1}

    asyncio.run(scenario())
    first, second = rig.stored(2)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.version == second.version
    assert rig.reader.group("r000000-g0002")["attempt"] == "2"
    assert rig.states() == [GroupState.TRAINED] * R


def test_an_engine_that_breaks_after_the_lease_was_lost_ends_nobody(rig: Rig) -> None:
    """There is nothing to give up any more; the worker goes on."""

    class Late(BreakingEngine):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: SamplingConfig, seeds: Sequence[int], priority: int
        ) -> list[Completion]:
            if priority == 0 and not self.calls[0]:
                rig.client.redis.zadd(rig.client.keys.leases(0), {"r000000-g0000": 1}, xx=True)
                rig.reap_as_another()
            return await super().generate(prompt_ids, sampling, seeds, priority)

    async def scenario() -> None:
        async with rig.worker(wrap=lambda engine: Late(engine, {0: 1})) as worker:
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.train()
            await worker.finish()

    asyncio.run(scenario())
    assert [row["attempt"] for row in rig.reader.groups(0)] == ["2", "1", "1", "1"]


@pytest.mark.parametrize("kind", ["cgp", "stream"])
def test_failures_under_other_schedules(make_rig: MakeRig, kind: str) -> None:
    rig = make_rig(schedule={"kind": kind})

    def wrap(engine: Engine) -> BreakingEngine:
        return BreakingEngine(engine, {0: 1, 3: 2})

    async def scenario() -> None:
        async with rig.worker(wrap=wrap) as worker:
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.train()
            await worker.finish()

    asyncio.run(scenario())
    assert [row["attempt"] for row in rig.reader.groups(0)] == ["2", "1", "1", "3"]

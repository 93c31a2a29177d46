"""A rollout worker serves whole rounds: what it announces is true, complete, and of the round's version."""

from __future__ import annotations

import asyncio

import numpy as np
from rolloutpipe_components.rollout.engine import Engine

from rolloutpipe_core.advantage import group_statistics
from rolloutpipe_core.data.prompts import cohort, cohort_sha
from rolloutpipe_core.domain import GroupState, VersionSpan, WeightVersion, group_id
from rolloutpipe_core.gate import Expectation, why_altered, why_rejected
from rolloutpipe_core.ledger.trainer import Drained
from rolloutpipe_core.noise import sample_seed
from rolloutpipe_core.rewards.pointer_walk import verify
from rolloutpipe_core.store.groups import decode_group

from .conftest import K, MakeRig, R, Rig


def check_announced(rig: Rig, round: int, version: WeightVersion) -> None:
    """Every group of the round is in the FIFO once, and its object is what the entry says."""
    config = rig.config
    entries = [entry for entry in rig.trainer.announced() if entry.ref.round == round]
    assert sorted(entry.ref.group for entry in entries) == [group_id(round, index) for index in range(R)]
    rows = cohort(config.seed, len(rig.prompts), round * R, R)
    for entry in entries:
        ref, prompt = entry.ref, rig.prompts[rows[entry.ref.index]]
        data = rig.store.get(ref.object)
        assert why_altered(data, ref) is None
        group = decode_group(data)
        assert why_rejected(group, ref, Expectation(config.run, 1, version, K, 1)) is None
        assert group.prompt_id == prompt.id == rig.reader.group(ref.group)["prompt"]
        assert (ref.attempt, ref.samples, ref.tokens) == (1, K, group.tokens)
        rewards = [sample.reward for sample in group.samples]
        statistics = group_statistics(rewards)
        assert [sample.advantage for sample in group.samples] == list(np.float32(statistics.advantages))
        assert abs(ref.reward_mean - statistics.mean) < 1e-5
        assert abs(ref.reward_std - statistics.std) < 1e-5
        for sample in group.samples:
            assert sample.prompt_ids.tolist() == rig.tokenizer.encode(prompt)
            assert sample.text == rig.tokenizer.decode(sample.response_ids)
            assert sample.reward == verify(prompt, sample.text).value
            assert sample.spans == (VersionSpan(version, 0, len(sample.response_ids)),)
            assert sample.loss_mask.all()
        lengths = [len(sample.response_ids) for sample in group.samples]
        row = rig.reader.group(ref.group)
        assert (int(row["response_tokens"]), int(row["longest_response"])) == (sum(lengths), max(lengths))


def test_two_rounds_are_served_with_their_versions_and_their_prompts(make_rig: MakeRig) -> None:
    rig = make_rig(schedule={"rounds": 2})
    genesis = rig.trainer.chain.genesis().commit.version

    async def scenario() -> None:
        async with rig.worker() as worker:
            await rig.until(lambda: rig.round_is("drained"))
            check_announced(rig, 0, genesis)
            *_, marker = rig.trainer.ledger.read("0-0")
            assert isinstance(marker, Drained)
            assert (marker.round, marker.generation) == (0, 1)
            first = rig.trainer.train(0).commit.version
            await rig.until(lambda: rig.round_is("drained", 1))
            check_announced(rig, 1, first)
            second = rig.trainer.train(1).commit.version
            await worker.finish()
            assert worker.engine.loaded == [genesis, first], f"{second} is the run's last and samples nothing"

    asyncio.run(scenario())
    opened = [rig.reader.round_state(round) for round in (0, 1)]
    prompts = [[row["prompt"] for row in rig.reader.groups(round)] for round in (0, 1)]
    assert len({*prompts[0], *prompts[1]}) == 2 * R, "each round has prompts of its own"
    for round, facts in enumerate(opened):
        assert facts["cohort_sha"] == cohort_sha(prompts[round])
        assert facts["data_fingerprint"] == rig.prompts.fingerprint
        assert (facts["cursor"], facts["cursor_end"]) == (str(round * R), str((round + 1) * R))


def test_samples_follow_from_the_keyed_seeds_alone(rig: Rig) -> None:
    """The same tokens come from the bare engine, asked for one group and one sample at a time."""

    async def scenario() -> None:
        async with rig.worker() as worker:
            await rig.until(lambda: rig.round_is("drained"))
            engine: Engine = worker.engine
            for index in range(R):
                (group,) = rig.stored(index)
                for sample in group.samples:
                    seed = sample_seed(rig.config.seed, 0, index, sample.index)
                    (again,) = await engine.generate(sample.prompt_ids.tolist(), rig.config.sampling, [seed], 0)
                    assert again.response_ids.tolist() == sample.response_ids.tolist()

    asyncio.run(scenario())


def test_groups_of_equal_rewards_are_filtered_when_the_schedule_drops_them(make_rig: MakeRig) -> None:
    """With one new token nothing can be answered: every reward is 0."""
    rig = make_rig(schedule={"zero_variance": "drop"}, sampling={"max_new_tokens": 1})

    async def scenario() -> None:
        async with rig.worker() as worker:
            await rig.until(lambda: rig.round_is("drained"))
            rig.trainer.train()
            await worker.finish()

    asyncio.run(scenario())
    for row in rig.reader.groups(0):
        assert (row["state"], row["reason"]) == (GroupState.FILTERED, "zero variance of rewards")
        assert (float(row["reward_mean"]), int(row["response_tokens"])) == (0.0, K)
    assert not list(rig.store.list(f"runs/{rig.config.run}/groups/")), "what is filtered is not uploaded"

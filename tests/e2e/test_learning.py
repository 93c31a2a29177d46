"""What training is for: the reward rises, engine and trainer agree, and every term of the loss reaches the weights."""

from __future__ import annotations

from statistics import mean

from rolloutpipe_core.observe.measures import RoundMetrics, all_round_metrics
from rolloutpipe_core.observe.timeline import Timelines

from .conftest import Run


def measured(run: Run) -> list[RoundMetrics]:
    return all_round_metrics(Timelines(run.reader.events()).rounds())


def test_the_reward_rises_and_the_mismatch_stays_small(run: Run) -> None:
    """The quickstart's setting: from about 0.42 to above 0.7 within ten rounds in every trial."""
    sizes = {"groups_per_round": 16, "samples_per_group": 8, "update_batch_size": 16, "frontier_width": 4}
    run.configure(schedule={"rounds": 10, **sizes}, sampling={"max_new_tokens": 96}, engine={"slots": 64}).complete()
    rounds = measured(run)
    rewards = [round.reward_mean for round in rounds]
    assert rewards[0] < 0.55
    assert mean(rewards[-3:]) > rewards[0] + 0.15, rewards
    assert all(round.mismatch_max < 1e-4 for round in rounds if round.mismatch_max is not None)
    assert run.audit().passed


def test_reference_recomputed_logprobs_and_entropy_in_a_whole_run(run: Run) -> None:
    """The trainer fetches version 0 for the KL term, also after a restart."""
    loss = {"kind": "dr_grpo", "aggregation": "dr_grpo", "kl_coefficient": 0.05, "entropy_coefficient": 0.01}
    loss |= {"old_logprobs": "recompute", "importance_cap": 2.0}
    run.configure(loss=loss, schedule={"rounds": 1}).complete()
    run.configure(loss=loss, schedule={"rounds": 3}).complete()
    rounds = measured(run)
    assert len(rounds) == 3
    assert rounds[0].kl == 0 or rounds[0].kl < rounds[-1].kl, "the policy moves away from version 0"
    assert all(round.entropy > 0 for round in rounds)
    assert all(round.mismatch_max < 1e-4 for round in rounds), "measured in every update when recomputed"
    assert run.audit().passed

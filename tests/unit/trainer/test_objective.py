"""An objective whose samples are shared by ranks: together they hold what one rank would."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from rolloutpipe_components.trainer.batch import Batch, make_batch
from rolloutpipe_components.trainer.objective import Objective
from torch import Tensor

from rolloutpipe_core.config.models import LossConfig

CPU = torch.device("cpu")


class Scores(NamedTuple):
    logprobs: Tensor
    entropy: Tensor


def scores_of(batch: Batch) -> Scores:
    """Any function of the tokens alone, so that it doesn't matter who scores them."""
    return Scores(-3.5 + 0.01 * batch.targets.double(), 1.0 + 0.1 * batch.targets.double())


def one_rank(groups, shares, loss):
    """The objective of a rank that takes the samples in `shares`."""
    objective = Objective(loss, max_new_tokens=16)
    trained = objective.count(groups)
    for share in shares:
        batch = make_batch([trained[index] for index in share], loss.aggregation, CPU, torch.float64)
        scores = scores_of(batch)
        objective.loss(batch, scores, scores.logprobs, scores.logprobs - 0.5)
    return objective


@pytest.mark.parametrize("aggregation", ["token_mean", "sample_mean", "dr_grpo"])
def test_ranks_together_hold_what_one_rank_would(aggregation, make_group) -> None:
    loss = LossConfig(aggregation=aggregation, kl_coefficient=0.1)
    groups = [make_group(seed=0, index=index) for index in range(2)]
    alone = one_rank(groups, [range(8)], loss)
    ranks = [one_rank(groups, shares, loss) for shares in ([[0, 3], [5]], [[1, 2, 4, 6, 7]], [])]  # the third is idle
    rows = torch.stack([rank.packed() for rank in ranks])
    for rank in ranks:
        rank.combine(rows)
    expected = alone.result(gradient_norm=1.0, learning_rate=0.1)
    for rank in ranks:
        assert rank.denominator == alone.denominator
        result = rank.result(gradient_norm=1.0, learning_rate=0.1)
        assert (result.groups, result.samples, result.tokens) == (2, 8, expected.tokens)
        assert result.metrics == pytest.approx(expected.metrics, rel=1e-12)
    assert {"kl", "mismatch_max", "mismatch_kl"} <= expected.metrics.keys()
    assert len({str(rank.result(1.0, 0.1)) for rank in ranks}) == 1, "the same bits on every rank"


def test_an_update_without_a_trained_token_measures_nothing(make_group) -> None:
    loss = LossConfig()
    ranks = [one_rank([make_group(seed=0, samples=2, untrained=(0, 1))], [], loss) for _ in range(2)]
    ranks[0].combine(torch.stack([rank.packed() for rank in ranks]))
    assert ranks[0].result(0.0, 0.1).metrics == {"loss": 0.0, "grad_norm": 0.0, "learning_rate": 0.1}

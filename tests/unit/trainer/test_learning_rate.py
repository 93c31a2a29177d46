from __future__ import annotations

import pytest
from rolloutpipe_components.trainer.learning_rate import learning_rate

from rolloutpipe_core.config.models import OptimizerConfig


def rates(updates: list[int], **fields: object) -> list[float]:
    config = OptimizerConfig.model_validate({"learning_rate": 1.0, **fields})
    return [learning_rate(update, config) for update in updates]


def test_constant() -> None:
    assert rates([0, 1, 1000]) == [1.0, 1.0, 1.0]


def test_three_warm_up_updates_are_quarters_of_the_peak() -> None:
    assert rates([0, 1, 2, 3, 4], warmup_updates=3) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_linear_decay_from_the_peak_to_the_floor() -> None:
    # 0.2 + 0.8 x (1, 3/4, 1/2, 1/4, 0), then the floor.
    decayed = rates([0, 1, 2, 3, 4, 9], decay="linear", decay_updates=4, min_learning_rate=0.2)
    assert decayed == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2], abs=1e-15)


def test_cosine_decay_after_a_warm_up() -> None:
    # (1 + cos(pi x (0, 1/3, 1/2, 2/3, 1))) / 2 = 1, 0.75, 0.5, 0.25, 0, from update 1 over 6 updates.
    decayed = rates([0, 1, 3, 4, 5, 7, 99], warmup_updates=1, decay="cosine", decay_updates=6)
    assert decayed == pytest.approx([0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0], abs=1e-15)

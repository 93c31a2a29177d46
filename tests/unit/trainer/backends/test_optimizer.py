from __future__ import annotations

import pytest
import torch
from rolloutpipe_components.trainer.backends.optimizer import MasterAdamW
from torch import nn

from rolloutpipe_core.config.models import OptimizerConfig
from rolloutpipe_core.errors import BadInput


def bfloat16_weight(value: float) -> nn.Parameter:
    return nn.Parameter(torch.full((1, 1), value, dtype=torch.bfloat16))


def test_first_steps_of_adamw_by_hand() -> None:
    """With a constant gradient g both moments are unbiased: a step moves by rate x g / |g|, less rate x decay x w."""
    matrix, vector = nn.Parameter(torch.full((1, 1), 2.0)), nn.Parameter(torch.full((1,), 2.0))
    optimizer = MasterAdamW({"matrix": matrix, "vector": vector}, OptimizerConfig(weight_decay=0.1, eps=1e-12))
    gradients = {"matrix": torch.full((1, 1), 3.0), "vector": torch.full((1,), -0.5)}
    optimizer.step(gradients, learning_rate=0.01)
    # 2 (1 - 0.01 x 0.1) - 0.01; a vector is not decayed: 2 + 0.01.
    assert matrix.item() == pytest.approx(1.988, abs=1e-6)
    assert vector.item() == pytest.approx(2.01, abs=1e-6)
    optimizer.step(gradients, learning_rate=0.0)
    assert matrix.item() == pytest.approx(1.988, abs=1e-6)


def test_updates_too_small_for_bfloat16_add_up_in_the_master() -> None:
    """Neighbours of 1 in bfloat16 are 2^-8 below and 2^-7 above it: 100 steps of 1e-4 move it, one does not."""
    weight = bfloat16_weight(1.0)
    optimizer = MasterAdamW({"weight": weight}, OptimizerConfig())
    seen = []
    for _ in range(100):
        optimizer.step({"weight": torch.ones(1, 1)}, learning_rate=1e-4)
        seen.append(weight.item())
    assert seen[0] == 1.0
    assert seen[-1] == 0.98828125  # the bfloat16 nearest to 0.99


def test_a_float32_parameter_is_its_own_master() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = MasterAdamW({"weight": weight}, OptimizerConfig())
    optimizer.step({"weight": torch.ones(2, 2)}, learning_rate=0.5)
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), 0.5), atol=1e-6, rtol=0)
    assert weight.grad is None


def test_another_models_state_is_refused(tmp_path) -> None:
    MasterAdamW({"weight": bfloat16_weight(1.0)}, OptimizerConfig()).save(tmp_path / "state")
    other = MasterAdamW({"weight": nn.Parameter(torch.ones(2))}, OptimizerConfig())
    with pytest.raises(BadInput, match="another model"):
        other.load(tmp_path / "state")

"""Every term and the whole objective, in numbers worked out by hand (tolerance 1e-6: float32)."""

from __future__ import annotations

from math import log

import pytest
import torch
from rolloutpipe_components.trainer.losses.aggregation import denominator, token_weight
from rolloutpipe_components.trainer.losses.cispo import clipped_weight
from rolloutpipe_components.trainer.losses.entropy import token_entropy
from rolloutpipe_components.trainer.losses.gspo import sequence_surrogate
from rolloutpipe_components.trainer.losses.importance import truncated_weight
from rolloutpipe_components.trainer.losses.kl import ESTIMATORS
from rolloutpipe_components.trainer.losses.objective import token_loss
from rolloutpipe_components.trainer.losses.surrogate import clipped_surrogate
from torch import Tensor

from rolloutpipe_core.advantage import group_statistics
from rolloutpipe_core.config.models import LossConfig


def near(*values: float) -> object:
    return pytest.approx(list(values), abs=1e-6)


def test_surrogate_with_two_bounds() -> None:
    ratios = [1.5, 0.5, 1.5, 0.5, 1.0]
    old = torch.full((5,), -2.0)
    logprobs = (old + torch.tensor(ratios).log()).requires_grad_()
    surrogate = clipped_surrogate(logprobs, old, torch.tensor([1.0, 1.0, -1.0, -1.0, 2.0]), 0.2, 0.28)
    # -min(1.5, 1.28)   -min(0.5, 0.8)   -min(-1.5, -1.28)   -min(-0.5, -0.8)   -min(2, 2)
    assert surrogate.loss.tolist() == near(-1.28, -0.5, 1.5, 0.8, -2.0)
    assert surrogate.ratio.tolist() == near(*ratios)
    assert surrogate.clipped.tolist() == [True, False, False, True, False]
    surrogate.loss.sum().backward()
    # d(-ratio A)/d(logprob) = -ratio A where the ratio itself is taken, 0 where the bound is.
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == near(0.0, -0.5, 1.5, 0.0, -2.0)


def test_gspo_clips_a_response_as_one() -> None:
    # Three responses of 2, 1 and 3 tokens: s = sqrt(2 * 0.5) = 1, s = 0.5, s = (1.1 * 1.2 * 1.728)^(1/3) = 1.3167.
    ratios = torch.tensor([2.0, 0.5, 0.5, 1.1, 1.2, 1.728])
    rows = torch.tensor([0, 0, 4, 7, 7, 7])
    old = torch.full((6,), -2.0)
    logprobs = (old + ratios.log()).requires_grad_()
    advantages = torch.tensor([1.0, 1.0, -1.0, 2.0, 2.0, 2.0])
    surrogate = sequence_surrogate(logprobs, old, advantages, rows, 0.2, 0.28)
    # -1 * 1   -min(-0.5, -0.8) = 0.8   -min(2.6333, 2.56) = -2.56
    assert surrogate.loss.tolist() == near(-1.0, -1.0, 0.8, -2.56, -2.56, -2.56)
    third = 2.280960 ** (1 / 3)
    assert surrogate.ratio.tolist() == near(1.0, 1.0, 0.5, third, third, third)
    assert surrogate.clipped.tolist() == [False, False, True, True, True, True]
    weights = torch.tensor([0.5, 0.5, 1.0, 1 / 3, 1 / 3, 1 / 3])  # sample_mean
    (weights * surrogate.loss).sum().backward()
    # d(-s A)/d(logprob_t) = -s A / |y| = -0.5 at both tokens of the first response, 0 at clipped ones.
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == near(-0.5, -0.5, 0.0, 0.0, 0.0, 0.0)


def test_cispo_keeps_the_gradient_of_clipped_tokens() -> None:
    old = torch.full((3,), -2.0)
    logprobs = (old + torch.tensor([1.5, 0.5, 1.0]).log()).requires_grad_()
    surrogate = clipped_weight(logprobs, old, torch.tensor([1.0, -1.0, 2.0]), 0.2, 0.28)
    # -1.28 * 1 * (-2 + ln 1.5)   -0.8 * -1 * (-2 + ln 0.5)   -1 * 2 * -2
    assert surrogate.loss.tolist() == near(2.0410047, -2.1545177, 4.0)
    assert surrogate.clipped.tolist() == [True, True, False]
    surrogate.loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == near(-1.28, 0.8, -2.0)


def test_cispo_without_a_lower_bound() -> None:
    old = torch.full((2,), -2.0)
    logprobs = old + torch.tensor([0.01, 9.0]).log()
    surrogate = clipped_weight(logprobs, old, torch.tensor([1.0, 1.0]), 1.0, 4.0)
    # -0.01 * (-2 + ln 0.01)   -5 * (-2 + ln 9)
    assert surrogate.loss.tolist() == near(0.0660517, -0.9861229)
    assert surrogate.clipped.tolist() == [False, True]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k1", (-0.6931472, 0.0, 0.5)),  # -x
        ("k2", (0.2402265, 0.0, 0.125)),  # x^2 / 2
        ("k3", (0.3068528, 0.0, 0.1065307)),  # exp(ln 2) - 1 - ln 2 = 1 - 0.6931472; exp(-0.5) - 1 + 0.5
    ],
)
def test_kl_estimators(name: str, expected: tuple[float, ...]) -> None:
    assert ESTIMATORS[name](torch.tensor([log(2), 0.0, -0.5])).tolist() == near(*expected)


def test_entropy() -> None:
    # Of (1/2, 1/4, 1/4): ln(2)/2 + 2 ln(4)/4 = 1.5 ln 2; of three equal ones: ln 3.
    log_probs = torch.tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]).log()
    assert token_entropy(log_probs).tolist() == near(1.0397208, 1.0986123)


def test_truncated_weight() -> None:
    old = torch.tensor([-1.0, -1.0, -1.0]).requires_grad_()
    engine = torch.tensor([-1.0 - log(3), -1.0, -1.0 + log(4)])
    weight = truncated_weight(old, engine, cap=2.0)
    assert weight.tolist() == near(2.0, 1.0, 0.25)
    assert not weight.requires_grad


# Three samples: two trained tokens, one, and none. All old log-probabilities are -2.
#   t1  ratio 1.5, A = 1    surrogate -1.2 (clipped)   KL x = ln 2: 0.3068528    H = 1.5 ln 2 = 1.0397208
#   t2  ratio 0.5, A = 1    surrogate -0.5             KL x = 0:    0            H = ln 2     = 0.6931472
#   t3  ratio 0.5, A = -1   surrogate  0.8 (clipped)   KL x = -0.5: 0.1065307    H = 0
OLD = torch.full((3,), -2.0)
LOGPROBS = OLD + torch.tensor([1.5, 0.5, 0.5]).log()
REFERENCE = LOGPROBS + torch.tensor([log(2), 0.0, -0.5])
ENTROPY = torch.tensor([1.0397208, 0.6931472, 0.0])
TERMS = {
    "advantages": torch.tensor([1.0, 1.0, -1.0]),
    "engine_logprobs": OLD,
    "logprobs": LOGPROBS,
    "old_logprobs": OLD,
    "entropy": ENTROPY,
    "rows": torch.tensor([0, 0, 1]),
}
FULL = LossConfig(kl_coefficient=0.1, entropy_coefficient=0.01)


def test_grpo_token_by_token() -> None:
    tokens = token_loss(FULL, **TERMS, reference_logprobs=REFERENCE)
    # -1.2 + 0.0306853 - 0.0103972     -0.5 - 0.0069315     0.8 + 0.0106531
    assert tokens.loss.tolist() == near(-1.1797119, -0.5069315, 0.8106531)
    assert tokens.clipped.tolist() == [True, False, True]
    assert tokens.kl is not None
    assert tokens.kl.tolist() == near(0.3068528, 0.0, 0.1065307)


def test_gradient_of_all_terms() -> None:
    logprobs, entropy = LOGPROBS.clone().requires_grad_(), ENTROPY.clone().requires_grad_()
    changed = TERMS | {"logprobs": logprobs, "entropy": entropy}
    token_loss(FULL, **changed, reference_logprobs=REFERENCE).loss.sum().backward()
    # Surrogate (0, -0.5, 0) and 0.1 (1 - exp(x)) = 0.1 (1 - 2), 0, 0.1 (1 - 0.6065307).
    assert logprobs.grad is not None and entropy.grad is not None
    assert logprobs.grad.tolist() == near(-0.1, -0.5, 0.0393469)
    assert entropy.grad.tolist() == near(-0.01, -0.01, -0.01)


def test_the_importance_weight_scales_the_surrogate_alone() -> None:
    # min(exp(old - engine), 2) = 2, 1, 0.5, so -2.4, -0.5, 0.4 beside the same KL and entropy as above.
    engine = OLD - torch.tensor([3.0, 1.0, 0.5]).log()
    config = FULL.model_copy(update={"old_logprobs": "recompute", "importance_cap": 2.0})
    tokens = token_loss(config, **TERMS | {"engine_logprobs": engine}, reference_logprobs=REFERENCE)
    assert tokens.loss.tolist() == near(-2.3797119, -0.5069315, 0.4106531)


def test_the_estimator_of_the_kl_term_is_chosen() -> None:
    # The surrogates and entropies as above; 0.1 k2 = 0.0240227, 0, 0.0125.
    tokens = token_loss(FULL.model_copy(update={"kl_estimator": "k2"}), **TERMS, reference_logprobs=REFERENCE)
    assert tokens.loss.tolist() == near(-1.1863745, -0.5069315, 0.8125)


def test_the_kind_chooses_the_policy_term() -> None:
    # t1, t2 one response: s = sqrt(1.5 * 0.5) = 0.8660254, not clipped; t3 alone: clipped at 0.8.
    gspo = token_loss(LossConfig(kind="gspo"), **TERMS, reference_logprobs=None)
    assert gspo.loss.tolist() == near(-0.8660254, -0.8660254, 0.8)
    # -1.2 (-2 + ln 1.5)   -0.8 (-2 + ln 0.5)   0.8 (-2 + ln 0.5)
    cispo = token_loss(LossConfig(kind="cispo"), **TERMS, reference_logprobs=None)
    assert cispo.loss.tolist() == near(1.9134419, 2.1545177, -2.1545177)


def test_without_reference_and_entropy_only_the_surrogate_is_left() -> None:
    tokens = token_loss(LossConfig(), **TERMS, reference_logprobs=None)
    assert tokens.loss.tolist() == near(-1.2, -0.5, 0.8)
    assert tokens.kl is None


def update_loss(aggregation: str, loss: Tensor) -> float:
    """The samples have 2, 1 and 0 trained tokens; max_new_tokens is 4."""
    weights = torch.tensor([token_weight(aggregation, count) for count in (2, 2, 1)])
    return float((weights * loss).sum() / denominator(aggregation, samples=3, tokens=3, max_new_tokens=4))


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", -0.2919968),  # (-1.1797119 - 0.5069315 + 0.8106531) / 3
        ("sample_mean", -0.0108895),  # ((-1.1797119 - 0.5069315) / 2 + 0.8106531 + 0) / 3
        ("dr_grpo", -0.0729992),  # (-1.1797119 - 0.5069315 + 0.8106531) / (3 x 4)
    ],
)
def test_grpo_in_each_aggregation(aggregation: str, expected: float) -> None:
    loss = token_loss(FULL, **TERMS, reference_logprobs=REFERENCE).loss
    assert update_loss(aggregation, loss) == pytest.approx(expected, abs=1e-6)


def test_dr_grpo_whole() -> None:
    # Rewards 1, 0, 0 less their mean: A = 2/3, 2/3 | -1/3 | (no token). Surrogates: -1.2 x 2/3, -0.5 x 2/3, 0.8 / 3.
    advantages = group_statistics([1.0, 0.0, 0.0], "dr_grpo").advantages
    changed = TERMS | {"advantages": torch.tensor([advantages[0], advantages[0], advantages[1]])}
    tokens = token_loss(LossConfig(kind="dr_grpo"), **changed, reference_logprobs=None)
    assert tokens.loss.tolist() == near(-0.8, -0.3333333, 0.2666667)
    # -0.8666667 / (3 samples x 4 tokens)
    assert update_loss("dr_grpo", tokens.loss) == pytest.approx(-0.0722222, abs=1e-6)


def test_an_update_without_trained_tokens_divides_by_one() -> None:
    assert denominator("token_mean", samples=2, tokens=0, max_new_tokens=4) == 1

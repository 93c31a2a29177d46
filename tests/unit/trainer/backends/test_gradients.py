"""Gradients depend on neither arrival order nor micro-batching.

Everything is compared with a full batch in float64 that shares no code with the trainer. Tolerances are parts of the
largest gradient element: 1e-12 for a trainer in float64, 1e-5 for one in float32. Qwen3 and Llama compute norms and
rotations in float32 even as float64 models, which leaves 1e-6 of them; GPT-2 is float64 throughout.
"""

from __future__ import annotations

import pytest
import torch

from rolloutpipe_core.config.models import LossConfig

# Portions in which the groups arrive, and the token budget. The largest group has about 80 tokens, the longest sample
# 22: at 40 every group is split, at 1 each sample goes alone.
ARRIVALS = {
    "at once": ([[0, 1, 2, 3, 4]], 10_000),
    "one by one": ([[0], [1], [2], [3], [4]], 10_000),
    "in another order": ([[3, 0], [4], [2, 1]], 200),
    "groups over the budget": ([[4, 2], [0, 1, 3]], 40),
    "samples over the budget": ([[1], [0, 2, 3, 4]], 1),
}
TOLERANCES = {
    ("gpt2", "float64"): 1e-12,
    ("gpt2", "float32"): 1e-5,
    ("llama", "float64"): 1e-6,
    ("llama", "float32"): 1e-5,
    ("qwen3", "float64"): 1e-6,
    ("qwen3", "float32"): 1e-5,
}
ALL_TERMS = {"clip_high": 0.28, "kl_coefficient": 0.1, "entropy_coefficient": 0.01}


@pytest.fixture(scope="module")
def groups(make_group):
    return [make_group(seed=1, index=index, untrained=(2,) if index == 3 else ()) for index in range(5)]


@pytest.fixture(scope="module", params=["gpt2", "llama", "qwen3"])
def family(request):
    return request.param


@pytest.fixture(scope="module", params=["token_mean", "sample_mean", "dr_grpo"])
def expected(request, family, make_model, groups, load_reference, full_batch_gradients):
    loss = LossConfig(aggregation=request.param, **ALL_TERMS)
    model, reference = load_reference(make_model(family)), load_reference(make_model(family, seed=1))
    return request.param, full_batch_gradients(model, groups, loss, temperature=0.7, reference=reference)


@pytest.mark.parametrize("arrival", ARRIVALS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_any_portions_give_the_full_batch_gradient(
    family, expected, arrival, dtype, make_model, make_trainer, groups, gradient_distance
):
    aggregation, gradients = expected
    portions, budget = ARRIVALS[arrival]
    trainer = make_trainer(
        make_model(family),
        reference=make_model(family, seed=1),
        dtype=dtype,
        temperature=0.7,
        microbatch_tokens=budget,
        max_grad_norm=1e9,
        aggregation=aggregation,
        **ALL_TERMS,
    )
    for portion in portions:
        trainer.accumulate([groups[index] for index in portion])
    result = trainer.step()
    assert 0.1 < result.metrics["clip_fraction"] < 0.9
    assert gradient_distance(trainer._gradients.tensors, gradients) < TOLERANCES[family, dtype]


def test_the_groups_do_exceed_the_budgets(groups):
    assert min(group.tokens for group in groups) > 40
    assert min(sample.tokens for group in groups for sample in group.samples) > 1


def test_gradient_checkpointing_changes_nothing(make_trainer, groups):
    gradients = []
    for checkpointing in (False, True):
        trainer = make_trainer(gradient_checkpointing=checkpointing)
        trainer.accumulate(groups)
        gradients.append(trainer._gradients.totals)
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_the_head_in_chunks_changes_nothing(make_trainer, groups, gradient_distance, monkeypatch):
    whole = make_trainer()
    whole.accumulate(groups)
    whole.step()
    monkeypatch.setattr("rolloutpipe_components.trainer.backends.policy.CHUNK_LOGITS", 7 * 32)
    chunked = make_trainer()
    chunked.accumulate(groups)
    chunked.step()
    assert gradient_distance(chunked._gradients.tensors, whole._gradients.tensors) < 1e-5

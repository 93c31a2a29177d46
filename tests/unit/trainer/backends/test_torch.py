"""One update from begin to result: what is counted, stepped, skipped and measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rolloutpipe_core.errors import BadInput

METRICS = {
    "loss",
    "grad_norm",
    "learning_rate",
    "clip_fraction",
    "kl",
    "entropy",
    "ratio_mean",
    "mismatch_kl",
    "mismatch_max",
    "mismatch_mean",
}


def with_samples(group, change):
    """The group with `change(sample)`'s fields in each sample."""
    return replace(group, samples=tuple(replace(sample, **change(sample)) for sample in group.samples))


def saved(trainer, directory):
    trainer.save(directory)
    return load_file(directory / "state.safetensors")


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_the_result_counts_what_was_accumulated(make_trainer, make_model, make_group):
    groups = [make_group(seed=0, index=index) for index in range(3)]
    trainer = make_trainer(reference=make_model(seed=1), kl_coefficient=0.1)
    trainer.begin_update(4)
    trainer.accumulate(groups[:1])
    trainer.accumulate(groups[1:])
    result = trainer.step()
    assert (result.update, result.groups, result.samples, result.skipped) == (4, 3, 12, False)
    assert result.tokens == sum(int(sample.loss_mask.sum()) for group in groups for sample in group.samples)
    assert result.metrics.keys() == METRICS
    assert json.dumps(result.metrics, allow_nan=False)


def test_without_a_reference_no_kl_is_claimed(make_trainer, make_group):
    trainer = make_trainer()
    trainer.accumulate([make_group(seed=0)])
    assert trainer.step().metrics.keys() == METRICS - {"kl"}


def test_begin_update_forgets(make_trainer, make_group):
    first, second = make_trainer(), make_trainer()
    first.accumulate([make_group(seed=0, index=1)])
    first.begin_update(1)
    second.begin_update(1)
    for trainer in (first, second):
        trainer.accumulate([make_group(seed=0)])
    assert first.step() == second.step()


def test_gradients_are_clipped_to_the_norm(make_trainer, make_group):
    trainer = make_trainer(max_grad_norm=1e-3)
    trainer.accumulate([make_group(seed=0)])
    assert trainer.step().metrics["grad_norm"] > 1e-3
    total = sum(gradient.square().sum().item() for gradient in trainer._gradients.tensors.values())
    assert math.sqrt(total) == pytest.approx(1e-3, rel=1e-5)


def test_the_rate_follows_the_schedule(make_trainer, make_group):
    trainer = make_trainer(learning_rate=0.4, warmup_updates=1, decay="linear", decay_updates=2)
    rates = []
    for update in range(4):
        trainer.begin_update(update)
        trainer.accumulate([make_group(seed=0)])
        rates.append(trainer.step().metrics["learning_rate"])
    assert rates == pytest.approx([0.2, 0.4, 0.2, 0.0])


def test_a_rewarded_response_becomes_likelier(make_trainer, make_group):
    """The first sample is rewarded and the second punished, on fixed data: the loss falls below its start."""
    group = with_samples(make_group(seed=0, samples=2), lambda sample: {"advantage": 1.0 - 2.0 * sample.index})
    trainer = make_trainer(old_logprobs="recompute", learning_rate=1e-3)
    losses = []
    for update in range(10):
        trainer.begin_update(update)
        trainer.accumulate([group])
        losses.append(trainer.step().metrics["loss"])
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.parametrize("aggregation", ["token_mean", "sample_mean", "dr_grpo"])
def test_a_sample_without_trained_tokens_gives_no_gradient_but_counts_as_a_sample(
    aggregation, make_trainer, make_group
):
    group = make_group(seed=0)
    longer = replace(group, samples=(*group.samples, *make_group(seed=1, samples=1, untrained=(0,)).samples))
    results = []
    for given in (group, longer):
        trainer = make_trainer(aggregation=aggregation)
        trainer.accumulate([given])
        results.append(trainer.step())
    assert [result.samples for result in results] == [4, 5]
    assert results[0].tokens == results[1].tokens
    ratio = results[1].metrics["loss"] / results[0].metrics["loss"]
    assert ratio == pytest.approx(1.0 if aggregation == "token_mean" else 4 / 5)


def test_a_group_without_any_trained_token(make_trainer, make_group, tmp_path):
    trainer = make_trainer()
    before = saved(trainer, tmp_path / "before")
    trainer.accumulate([make_group(seed=0, samples=2, untrained=(0, 1))])
    result = trainer.step()
    assert (result.samples, result.tokens, result.skipped) == (2, 0, False)
    assert result.metrics["loss"] == result.metrics["grad_norm"] == 0.0
    after = saved(trainer, tmp_path / "after")
    assert same(before, {name: tensor for name, tensor in after.items() if name.startswith("master.")})


@pytest.mark.parametrize(
    ("fields", "advantage"),
    [
        ({"dtype": "float32"}, math.inf),
        ({"dtype": "bfloat16"}, math.inf),
        ({"deterministic": True}, math.inf),
        ({"deterministic": True}, 1e9),  # finite, but beyond what the fixed-point sums hold
    ],
)
def test_a_step_with_a_gradient_that_is_not_finite_changes_nothing(
    fields, advantage, make_trainer, make_group, tmp_path
):
    healthy = make_group(seed=0)
    broken = with_samples(make_group(seed=0, index=1), lambda sample: {"advantage": advantage})
    trainer, other = make_trainer(**fields), make_trainer(**fields)
    for each in (trainer, other):
        each.accumulate([healthy])
        each.step()
    before = saved(trainer, tmp_path / "before")
    trainer.begin_update(1)
    trainer.accumulate([healthy, broken])
    result = trainer.step()
    assert result.skipped
    assert "grad_norm" not in result.metrics
    assert json.dumps(result.metrics, allow_nan=False)
    assert same(saved(trainer, tmp_path / "after"), before)
    for each in (trainer, other):  # and the next update is as if the broken one had never been
        each.begin_update(2)
        each.accumulate([healthy])
        each.step()
    assert same(saved(trainer, tmp_path / "next"), saved(other, tmp_path / "other"))


def test_a_skipped_first_step_leaves_the_rounds_weights_in_place(make_trainer, make_group):
    """After it, `engine` still measures the mismatch and `recompute` still has ratios of 1."""
    broken = with_samples(make_group(seed=0), lambda sample: {"advantage": math.nan})
    trainer = make_trainer(old_logprobs="recompute")
    trainer.accumulate([broken])
    assert trainer.step().skipped
    trainer.begin_update(1)
    trainer.accumulate([make_group(seed=0)])
    assert trainer.step().metrics["ratio_mean"] == 1.0


def test_a_step_without_groups_is_refused(make_trainer):
    with pytest.raises(BadInput, match="without a group"):
        make_trainer().step()


def test_kl_without_reference_weights_is_refused(make_trainer):
    with pytest.raises(BadInput, match="no reference"):
        make_trainer(kl_coefficient=0.1)


def test_bfloat16_learns_with_float32_gradients(make_trainer, make_group):
    group = with_samples(make_group(seed=0, samples=2), lambda sample: {"advantage": 1.0 - 2.0 * sample.index})
    trainer = make_trainer(dtype="bfloat16", old_logprobs="recompute", learning_rate=1e-3)
    losses = []
    for update in range(10):
        trainer.begin_update(update)
        trainer.accumulate([group])
        losses.append(trainer.step().metrics["loss"])
        assert {gradient.dtype for gradient in trainer._gradients.tensors.values()} == {torch.float32}
    assert losses[-1] < losses[0] - 0.05


def test_bfloat16_gradients_are_near_those_of_float32(make_trainer, make_group, make_model, gradient_distance):
    """Tolerance 8 % of the largest element: 2^-8 a rounding, over two layers, the head and a sum of tokens.

    `recompute` lets every ratio be 1, so that no token is clipped in one precision and not in the other.
    """
    gradients = []
    for dtype in ("bfloat16", "float32"):
        trainer = make_trainer(make_model("llama"), dtype=dtype, old_logprobs="recompute", max_grad_norm=1e9)
        trainer.accumulate([make_group(seed=0, index=index) for index in range(4)])
        trainer.step()
        gradients.append(trainer._gradients.tensors)
    assert gradient_distance(*gradients) < 0.08


def test_temperature_divides_the_logits(make_trainer, make_group, load_reference, make_model):
    group = make_group(seed=0, samples=1)
    (sample,) = group.samples
    trainer = make_trainer(temperature=2.0)
    trainer.accumulate([group])
    ids = torch.tensor([[*sample.prompt_ids, *sample.response_ids]], dtype=torch.int64)
    logits = load_reference(make_model())(input_ids=ids).logits[0, len(sample.prompt_ids) - 1 : -1]
    table = torch.softmax(logits / 2.0, dim=-1).detach().numpy()[sample.loss_mask == 1]
    entropy = -(table * np.log(table)).sum(axis=1).mean()
    assert trainer.step().metrics["entropy"] == pytest.approx(entropy, rel=1e-5)

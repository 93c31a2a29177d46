"""The same tensors through trl's GRPOTrainer._compute_loss and through this trainer: loss and gradient agree.

Both in float32; tolerances 1e-6 for the loss and 1e-5 of the largest element for the gradient.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from .conftest import sample_logprobs

AGGREGATIONS = {"grpo": "sample_mean", "bnpo": "token_mean", "dr_grpo": "dr_grpo"}  # trl's loss_type and ours
TEMPERATURE = 0.8


@pytest.fixture
def groups(make_group):
    groups = [make_group(seed=4, index=0, untrained=(1,)), make_group(seed=4, index=1)]
    assert len({len(group.samples[0].prompt_ids) for group in groups}) == 2
    return groups


@pytest.fixture
def trl_gradients(make_model, load_reference, tmp_path, groups):
    def gradients(loss_type, entropy=0.0, moved=None, cap=None, **options):
        """`moved`: a folder with weights that are no longer the round's, make_model()'s."""
        trl = GRPOTrainer(
            model=load_reference(moved or make_model(), torch.float32),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(
                output_dir=str(tmp_path),
                report_to=[],
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                loss_type=loss_type,
                beta=0.1,
                use_bias_correction_kl=False,  # GRPO's own KL term, not DeepSeek-V3.2's
                entropy_coef=entropy,
                temperature=TEMPERATURE,
                max_completion_length=16,
                num_generations=4,
                per_device_train_batch_size=4,
                **options,
            ),
            train_dataset=Dataset.from_dict({"prompt": ["w2 w3"]}),
            processing_class=AutoTokenizer.from_pretrained(make_model()),
        )
        trl.model.eval()  # no gradient accumulation is counted; the model has no dropout
        inputs = _trl_inputs(groups, load_reference(make_model(seed=1), torch.float32))
        if cap is not None:
            trl.use_vllm = True  # not before: it would look for a server
            inputs |= _truncated(inputs, groups, load_reference(make_model(), torch.float32), cap)
        loss = trl._compute_loss(trl.model, inputs)
        loss.backward()
        return loss.item(), {name: parameter.grad for name, parameter in trl.model.named_parameters()}

    return gradients


def _truncated(inputs, groups, old, cap):
    """As trl makes them before it trains: old log-probabilities of its own, and its mode `token_truncate`."""
    sampled = inputs["old_per_token_logps"]
    recomputed = torch.zeros_like(sampled)
    for row, sample in enumerate(sample for group in groups for sample in group.samples):
        table = sample_logprobs(old, sample, TEMPERATURE).detach()
        chosen = table.gather(1, torch.as_tensor(sample.response_ids, dtype=torch.int64)[:, None])[:, 0]
        recomputed[row, : len(chosen)] = chosen
    mask = inputs["completion_mask"] * inputs["tool_mask"]
    ratio = torch.exp((recomputed - sampled) * mask)
    assert (ratio < cap)[mask.bool()].any() and (ratio > cap)[mask.bool()].any()
    return {"old_per_token_logps": recomputed, "importance_sampling_ratio": torch.clamp(ratio, max=cap)}


def _trl_inputs(groups, reference):
    """Prompts padded on the left, completions on the right; a hole in the loss mask is trl's tool mask."""
    samples = [sample for group in groups for sample in group.samples]
    prompts = max(len(sample.prompt_ids) for sample in samples)
    lengths = max(len(sample.response_ids) for sample in samples)

    def left(values):
        return np.pad(values, (prompts - len(values), 0))

    def right(values):
        return torch.as_tensor(np.pad(np.asarray(values), (0, lengths - len(values))))

    def reference_logprobs(sample):
        table = sample_logprobs(reference, sample, TEMPERATURE).detach()
        return table.gather(1, torch.as_tensor(sample.response_ids, dtype=torch.int64)[:, None])[:, 0].numpy()

    return {
        "prompt_ids": torch.as_tensor(np.stack([left(sample.prompt_ids) for sample in samples]), dtype=torch.int64),
        "prompt_mask": torch.as_tensor(np.stack([left(np.ones_like(sample.prompt_ids)) for sample in samples])),
        "completion_ids": torch.stack([right(sample.response_ids) for sample in samples]).long(),
        "completion_mask": torch.stack([right(np.ones_like(sample.response_ids)) for sample in samples]),
        "tool_mask": torch.stack([right(sample.loss_mask) for sample in samples]),
        "num_items_in_batch": torch.tensor(sum(int(sample.loss_mask.sum()) for sample in samples)),
        "advantages": torch.tensor([sample.advantage for sample in samples]),
        "old_per_token_logps": torch.stack([right(sample.behavior_logprobs) for sample in samples]),
        "ref_per_token_logps": torch.stack([right(reference_logprobs(sample)) for sample in samples]),
    }


# trl takes the mean of the entropy over the tokens whatever the loss type, so it is comparable under token_mean alone.
@pytest.mark.parametrize(("loss_type", "entropy"), [("grpo", 0.0), ("bnpo", 0.0), ("bnpo", 0.02), ("dr_grpo", 0.0)])
def test_loss_and_gradient_equal_trls(
    loss_type, entropy, groups, trl_gradients, make_model, make_trainer, gradient_distance
):
    trainer = make_trainer(
        reference=make_model(seed=1),
        temperature=TEMPERATURE,
        aggregation=AGGREGATIONS[loss_type],
        clip_high=0.28,
        kl_coefficient=0.1,
        entropy_coefficient=entropy,
        max_grad_norm=1e9,
    )
    for group in groups:
        trainer.accumulate([group])
    result = trainer.step()
    loss, gradients = trl_gradients(loss_type, entropy, epsilon=0.2, epsilon_high=0.28)
    assert result.metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert gradient_distance(trainer._gradients.tensors, gradients) < 1e-5
    assert 0 < result.metrics["clip_fraction"] < 1


# trl bounds CISPO's weight above alone, by `epsilon_high` itself.
@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (
            {"kind": "gspo", "aggregation": "sample_mean", "clip_low": 0.02, "clip_high": 0.03},
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03},
        ),
        (
            {"kind": "grpo", "aggregation": "token_mean", "clip_low": 0.2, "clip_high": 0.28},
            {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
        ),
        (
            {"kind": "cispo", "aggregation": "token_mean", "clip_low": 1.0, "clip_high": 0.1},
            {"loss_type": "cispo", "epsilon_high": 1.1},
        ),
    ],
    ids=["gspo", "dapo", "cispo"],
)
def test_other_policy_terms_equal_trls(
    settings, options, groups, trl_gradients, make_model, make_trainer, gradient_distance
):
    trainer = make_trainer(
        reference=make_model(seed=1), temperature=TEMPERATURE, kl_coefficient=0.1, max_grad_norm=1e9, **settings
    )
    for group in groups:
        trainer.accumulate([group])
    result = trainer.step()
    loss, gradients = trl_gradients(**options)
    assert result.metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert gradient_distance(trainer._gradients.tensors, gradients) < 1e-5
    assert 0 < result.metrics["clip_fraction"] < 1


def test_truncated_importance_weights_equal_trls(
    groups, trl_gradients, make_model, make_trainer, gradient_distance, tmp_path
):
    """In a round's second update, whose ratios are to the log-probabilities under weights that have moved since."""
    trainer = make_trainer(
        reference=make_model(seed=1),
        temperature=TEMPERATURE,
        old_logprobs="recompute",
        importance_cap=1.1,
        kl_coefficient=0.1,
        max_grad_norm=1e9,
        learning_rate=1e-2,
    )
    for update in range(2):
        trainer.begin_update(update)
        for group in groups:
            trainer.accumulate([group])
        if update == 1:
            trainer.export_weights(tmp_path / "moved")
        result = trainer.step()
    loss, gradients = trl_gradients(
        "bnpo",
        moved=tmp_path / "moved",
        cap=1.1,
        epsilon=0.2,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=1.1,
    )
    assert result.metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert gradient_distance(trainer._gradients.tensors, gradients) < 1e-5
    assert 0 < result.metrics["clip_fraction"] < 1

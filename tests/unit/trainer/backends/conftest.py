"""An independent reference for the torch backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from rolloutpipe_core.config.models import LossConfig
from rolloutpipe_core.domain import Group, Sample

Reference = Callable[..., dict[str, Tensor]]


def read_model(folder: Path, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def sample_logprobs(model: PreTrainedModel, sample: Sample, temperature: float) -> Tensor:
    """log-softmax(logits / T) at each response position, [T, V], of one unpadded row through the whole model."""
    ids = torch.tensor([*sample.prompt_ids, *sample.response_ids], dtype=torch.int64)[None]
    logits = model(input_ids=ids, use_cache=False).logits[0, len(sample.prompt_ids) - 1 : -1]
    return torch.log_softmax(logits / temperature, dim=-1)


@pytest.fixture(scope="session")
def full_batch_gradients() -> Reference:
    """The gradient of the update's loss, written out sample by sample: no padding, no micro-batch, no running sum.

    `old` is the model of the ratio's denominator; without it the engine's log-probabilities are.
    """

    def gradients(
        model: PreTrainedModel,
        groups: Sequence[Group],
        loss: LossConfig,
        *,
        temperature: float = 1.0,
        max_new_tokens: int = 16,
        reference: PreTrainedModel | None = None,
        old: PreTrainedModel | None = None,
    ) -> dict[str, Tensor]:
        samples = [sample for group in groups for sample in group.samples]
        totals = []
        for sample in samples:
            mask = torch.tensor(sample.loss_mask, dtype=torch.float64)
            chosen = torch.tensor(sample.response_ids, dtype=torch.int64)[:, None]
            table = sample_logprobs(model, sample, temperature)
            logprob = table.gather(1, chosen)[:, 0]
            engine = torch.tensor(sample.behavior_logprobs, dtype=table.dtype)
            before = engine
            if old is not None:
                before = sample_logprobs(old, sample, temperature).gather(1, chosen)[:, 0].detach()
            ratio = torch.exp(logprob - before)
            bounded = torch.clip(ratio, 1 - loss.clip_low, 1 + loss.clip_high)
            objective = torch.min(ratio * sample.advantage, bounded * sample.advantage)
            if loss.importance_cap is not None:
                objective = objective * torch.clip(torch.exp(before - engine), max=loss.importance_cap)
            if reference is not None:
                other = sample_logprobs(reference, sample, temperature).gather(1, chosen)[:, 0].detach()
                objective = objective - loss.kl_coefficient * (torch.exp(other - logprob) - (other - logprob) - 1)
            objective = objective + loss.entropy_coefficient * -(table.exp() * table).sum(1)
            total = -(objective * mask).sum()
            if loss.aggregation == "sample_mean":
                total = total / max(mask.sum().item(), 1)
            totals.append(total)
        tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
        divisor = {"token_mean": tokens, "sample_mean": len(samples), "dr_grpo": len(samples) * max_new_tokens}
        model.zero_grad()
        (torch.stack(totals).sum() / divisor[loss.aggregation]).backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    return gradients


def distance(given: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest difference of any element, as a part of the largest gradient element."""
    assert given.keys() == expected.keys()
    scale = max(gradient.abs().max().item() for gradient in expected.values())
    return max((given[name].double() - expected[name].double()).abs().max().item() for name in expected) / scale


@pytest.fixture(scope="session")
def gradient_distance() -> Callable[[dict[str, Tensor], dict[str, Tensor]], float]:
    return distance


@pytest.fixture(scope="session")
def load_reference() -> Callable[..., PreTrainedModel]:
    return read_model

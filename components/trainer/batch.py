"""Samples of one micro-batch as tensors: rows padded on the right, and the facts of each trained token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rolloutpipe_core.domain import Sample
from rolloutpipe_core.errors import BadInput

from .losses.aggregation import Aggregation, token_weight


@dataclass(frozen=True, slots=True)
class Batch:
    """B rows of L positions with N trained tokens, row by row, in each row from left to right.

    No attention mask: under a causal one a real token never sees the padding on its right, and no output at a padding
    position is read.
    """

    input_ids: Tensor  # int64 [B, L], prompt + response + zeros
    predicts: Tensor  # bool [B, L], True where the next position holds a trained token; N of them
    targets: Tensor  # int64 [N], the trained tokens
    engine_logprobs: Tensor  # float [N], nats
    advantages: Tensor  # float [N]
    weights: Tensor  # float [N], each token's weight in the update's sum
    rows: Tensor  # int64 [N], the row of each trained token: its sample


def make_batch(
    samples: Sequence[Sample], aggregation: Aggregation, device: torch.device, dtype: torch.dtype = torch.float32
) -> Batch:
    """Samples with at least one trained token each; `dtype` is that of the loss.

    Raises BadInput for a sample without a prompt: nothing predicts its first token.
    """
    length = max(sample.tokens for sample in samples)
    input_ids = np.zeros((len(samples), length), dtype=np.int64)
    predicts = np.zeros((len(samples), length), dtype=bool)
    counts = np.zeros(len(samples), dtype=np.int64)
    for row, sample in enumerate(samples):
        prompt = len(sample.prompt_ids)
        if prompt == 0:
            raise BadInput("a sample without prompt tokens", given=f"sample {sample.index}", expected="at least one")
        input_ids[row, :prompt] = sample.prompt_ids
        input_ids[row, prompt : sample.tokens] = sample.response_ids
        predicts[row, prompt - 1 : sample.tokens - 1] = sample.loss_mask
        counts[row] = np.count_nonzero(sample.loss_mask)
    trained = np.concatenate([sample.loss_mask for sample in samples]).astype(bool)
    advantages = np.array([sample.advantage for sample in samples])
    weights = np.array([token_weight(aggregation, int(count)) for count in counts])

    def of_each_token(values: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(np.repeat(values, counts), dtype=dtype, device=device)

    def of_trained(parts: Sequence[np.ndarray], dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(np.concatenate(parts)[trained], dtype=dtype, device=device)

    return Batch(
        input_ids=torch.as_tensor(input_ids, device=device),
        predicts=torch.as_tensor(predicts, device=device),
        targets=of_trained([sample.response_ids for sample in samples], torch.int64),
        engine_logprobs=of_trained([sample.behavior_logprobs for sample in samples], dtype),
        advantages=of_each_token(advantages, dtype),
        weights=of_each_token(weights, dtype),
        rows=of_each_token(np.arange(len(samples)), torch.int64),
    )

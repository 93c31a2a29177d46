from __future__ import annotations

import numpy as np
import pytest
import torch
from rolloutpipe_components.trainer.batch import make_batch

from rolloutpipe_core.domain import FinishReason, Sample
from rolloutpipe_core.errors import BadInput


def sample(prompt: list[int], response: list[int], mask: list[int], advantage: float) -> Sample:
    return Sample(
        index=0,
        prompt_ids=np.array(prompt, dtype=np.int32),
        response_ids=np.array(response, dtype=np.int32),
        behavior_logprobs=-np.arange(1, len(response) + 1, dtype=np.float32),
        loss_mask=np.array(mask, dtype=np.uint8),
        reward=0.0,
        advantage=advantage,
        finish_reason=FinishReason.STOP,
        spans=(),
    )


def test_rows_and_trained_tokens_by_hand() -> None:
    samples = [sample([5, 6], [7, 8, 9], [1, 0, 1], 0.5), sample([5], [4], [1], -2.0)]
    batch = make_batch(samples, "sample_mean", torch.device("cpu"))
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9], [5, 4, 0, 0, 0]]
    # 6 predicts 7 and 8 predicts 9; 8 itself is masked. In the second row 5 predicts 4.
    assert batch.predicts.int().tolist() == [[0, 1, 0, 1, 0], [1, 0, 0, 0, 0]]
    assert batch.targets.tolist() == [7, 9, 4]
    assert batch.engine_logprobs.tolist() == [-1.0, -3.0, -1.0]
    assert batch.advantages.tolist() == [0.5, 0.5, -2.0]
    assert batch.weights.tolist() == [0.5, 0.5, 1.0]


@pytest.mark.parametrize("aggregation", ["token_mean", "dr_grpo"])
def test_tokens_weigh_one_where_no_sample_mean_is_taken(aggregation: str) -> None:
    batch = make_batch([sample([5, 6], [7, 8, 9], [1, 0, 1], 0.5)], aggregation, torch.device("cpu"))
    assert batch.weights.tolist() == [1.0, 1.0]


def test_a_sample_without_prompt_is_refused() -> None:
    with pytest.raises(BadInput, match="without prompt"):
        make_batch([sample([], [7], [1], 0.5)], "token_mean", torch.device("cpu"))

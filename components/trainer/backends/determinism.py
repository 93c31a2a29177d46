"""Deterministic mode's promise on the trainer's side, checked with its own model before it is given.

An update's gradients must depend on its groups alone: neither on their order, nor on what shares a call with them, nor
on the pass. What two groups add, taken away by a second pass in another order, leaves exactly nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rolloutpipe_core.domain import FinishReason, Group, Sample, VersionSpan, WeightVersion
from rolloutpipe_core.errors import BadInput

VERSION = WeightVersion(0, "0" * 64)
PROMPT_TOKENS = 5
RESPONSE_TOKENS = ((9, 4), (6, 11))
"""Of each sample of each group: together with the prompt at most 16 positions."""


def check_order_free(accumulate: Callable[[Sequence[Group]], None], totals: Sequence[Tensor], vocabulary: int) -> None:
    """Raise BadInput unless the sums follow from the groups alone on this device, dtype and torch build.

    `accumulate` adds the gradients of groups to `totals`, int64 of any shapes, which are 0 before and undefined after.
    """
    first, second = (_group(index, vocabulary) for index in range(len(RESPONSE_TOKENS)))
    accumulate([first, second])
    for total in totals:
        total.neg_()
    accumulate([second])
    accumulate([first])
    if any(total.any() for total in totals) or torch.get_num_threads() != 1:
        raise BadInput(
            "deterministic mode: gradients are not bit-equal here",
            given=f"device {totals[0].device}, torch {torch.__version__}, {torch.get_num_threads()} threads",
            expected="the same bits in every pass and order, on one torch thread",
            remedy="set deterministic: false, use one torch thread, or another model.device",
        )


def _group(index: int, vocabulary: int) -> Group:
    draw = np.random.default_rng(index)
    prompt_ids = draw.integers(vocabulary, size=PROMPT_TOKENS, dtype=np.int32)
    samples = tuple(
        Sample(
            index=place,
            prompt_ids=prompt_ids,
            response_ids=draw.integers(vocabulary, size=length, dtype=np.int32),
            behavior_logprobs=np.full(length, -math.log(vocabulary), dtype=np.float32),
            loss_mask=np.ones(length, dtype=np.uint8),
            reward=float(place),
            advantage=2.0 * place - 1.0,
            finish_reason=FinishReason.STOP,
            spans=(VersionSpan(VERSION, 0, length),),
        )
        for place, length in enumerate(RESPONSE_TOKENS[index])
    )
    return Group("check", 1, 0, index, 1, VERSION, "check", samples)

"""Deterministic mode's promise, checked on this CPU, torch build and model before it is given.

A sample's bits must not depend on how many rows a forward has, on which row it is in, nor on how far the
other rows make all of them look (the window). What may change them is the order in which a product sums.
So the checks sum terms of many magnitudes that cancel exactly: the result is rounding alone, and another order
shows at once, in bfloat16 too, which rounds most of it away otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rolloutpipe_core.errors import EngineFailure

from .policy import LinearShape, Policy
from .shapes import PREFILL_POSITIONS, PROMPT_QUANTUM, DeterministicShapes
from .slots import PrefilledPrompt, SlotCache

LEAST_ROWS = (4, 8, 16, 32)
# Small windows cost less; 512 is the block in which the CPU's attention kernel sums.
WINDOW_QUANTA = (16, 64, 512)
WIDEST_WINDOW = 2 * WINDOW_QUANTA[-1]


@torch.inference_mode()
def checked_shapes(policy: Policy, slots: int) -> DeterministicShapes:
    """The cheapest shapes under which no bit changes here; raises EngineFailure when there are none."""
    draw = torch.Generator().manual_seed(0)
    quantum = next((quantum for quantum in WINDOW_QUANTA if _windows_agree(policy, quantum, draw)), None)
    if quantum is None:
        raise _not_equal(policy, "attention windows")
    for least_rows in LEAST_ROWS:
        shapes = DeterministicShapes(least_rows, quantum)
        counts = shapes.row_counts(slots)
        if all(_products_agree(policy, shape, counts, draw) for shape in policy.linear_shapes):
            break
    else:
        raise _not_equal(policy, "matrix products")
    _check_decoding(policy, _check_prefills(policy, shapes), counts)
    return shapes


def _products_agree(policy: Policy, shape: LinearShape, row_counts: Sequence[int], draw: torch.Generator) -> bool:
    """Each row's product among so many rows, at either end of them, equals that in the largest forward."""
    half = shape.inputs // 2
    columns = torch.randperm(2 * half, generator=draw)
    most = max(PREFILL_POSITIONS, row_counts[-1])
    terms = _rough((most, half), draw)
    rows = torch.cat((terms, -terms), dim=1)[:, columns]
    weight = torch.randn((shape.outputs, half), generator=draw).repeat(1, 2)[:, columns]
    padding = (0, shape.inputs - 2 * half)
    rows, weight = (functional.pad(x, padding).to(policy.device, policy.dtype) for x in (rows, weight))
    bias = weight.new_zeros(shape.outputs) if shape.bias else None
    expected = functional.linear(rows, weight, bias)
    return all(
        torch.equal(functional.linear(part, weight, bias), wanted)
        for count in row_counts
        for part, wanted in (
            (rows[:count], expected[:count]),
            (rows[-count:].flip(0), expected[-count:].flip(0)),
        )
    )


def _windows_agree(policy: Policy, quantum: int, draw: torch.Generator) -> bool:
    """Attention at positions up to two kernel blocks is the same under every window as under the widest.

    One row a position p, one kv head. Scores cancel within a head; keys mirror at the middle of 0 .. p and
    values there are opposite, so that what is summed over positions cancels as well.
    """
    heads, size = policy.queries_per_key, policy.head_size
    positions = torch.arange(PROMPT_QUANTUM, WIDEST_WINDOW + 1, PROMPT_QUANTUM) - 1
    rows = len(positions)
    # Magnitudes at which a score's rounding is large enough to move its probability.
    query = _rough((rows, heads, 1, size // 2), draw).repeat(1, 1, 1, 2) * 32
    keys = torch.randn((rows, 1, WIDEST_WINDOW, size // 2), generator=draw) * 32
    keys = torch.cat((keys, -keys), dim=-1)
    values = _rough((rows, 1, WIDEST_WINDOW, size), draw)
    for row, end in enumerate((positions + 1).tolist()):
        keys[row, :, end // 2 : end] = keys[row, :, : end // 2].flip(1)
        values[row, :, end // 2 : end] = -values[row, :, : end // 2].flip(1)
    order = torch.randperm(size, generator=draw)
    query, keys = query[..., order], keys[..., order]
    query, keys, values = (x.to(policy.device, policy.dtype) for x in (query, keys, values))
    positions = positions.to(policy.device)
    expected = _attention(query, keys, values, positions, WIDEST_WINDOW)
    for window in range(quantum, WIDEST_WINDOW, quantum):
        inside = positions < window
        given = _attention(query[inside], keys[inside], values[inside], positions[inside], window)
        if not torch.equal(given, expected[inside]):
            return False
    return True


def _attention(query: Tensor, keys: Tensor, values: Tensor, positions: Tensor, window: int) -> Tensor:
    """What a layer computes in a decode step, for one kv head."""
    visible = torch.arange(window, device=query.device) <= positions[:, None]
    mask = torch.where(visible, 0.0, torch.finfo(query.dtype).min).to(query.dtype)[:, None, None]
    layer: Any = torch.nn.Module()
    layer.num_key_value_groups, layer.is_causal = query.shape[1], True
    scaling = query.shape[-1] ** -0.5
    return sdpa_attention_forward(layer, query, keys[:, :, :window], values[:, :, :window], mask, scaling=scaling)[0]


def _check_prefills(policy: Policy, shapes: DeterministicShapes) -> PrefilledPrompt:
    """A prompt alone and among others of its padded length must give the same; returns one."""
    shortest = shapes.prompt_length(1)
    for length in (4 * shortest, shortest):
        most = shapes.prefill_prompts(length)
        prompts = [[(row + place) % policy.vocabulary for place in range(length - row)] for row in range(most)]
        alone = [policy.prefill([prompt], length, shapes.least_rows)[0] for prompt in prompts]
        for count in range(2, most + 1):
            for one, among in zip(alone, policy.prefill(prompts[:count], length, shapes.least_rows), strict=False):
                if not (torch.equal(one.kv, among.kv) and torch.equal(one.logits, among.logits)):
                    raise _not_equal(policy, f"prefills of {count} prompts")
    return alone[0]


def _check_decoding(policy: Policy, prompt: PrefilledPrompt, row_counts: Sequence[int]) -> None:
    """The same token after the same prompt in every row of forwards of every size must give one answer."""
    answers: set[bytes] = set()
    for rows in row_counts:
        cache = SlotCache(rows, WINDOW_QUANTA[0])
        for row in range(rows):
            cache.put(row, prompt)
        places = np.full(rows, prompt.length, dtype=np.int64)
        logits = policy.decode(cache, np.zeros(rows, dtype=np.int64), places, longest=prompt.length)
        answers.update(row.numpy().tobytes() for row in logits.cpu())
        if len(answers) > 1:
            raise _not_equal(policy, f"forwards of {rows} rows")


def _rough(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    """Normal numbers times powers of two from 2**-10 to 2**10: their sums round in every order otherwise."""
    return torch.randn(shape, generator=draw) * torch.exp2(torch.randint(-10, 11, shape, generator=draw).float())


def _not_equal(policy: Policy, what: str) -> EngineFailure:
    return EngineFailure(
        f"deterministic mode: {what} are not bit-equal here",
        given=f"device {policy.device}, {policy.dtype}, torch {torch.__version__}, {torch.get_num_threads()} threads",
        expected="the same bits whatever else is in the batch",
        remedy="set deterministic: false, use one torch thread, or another model.dtype",
    )

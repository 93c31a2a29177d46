"""Which models slots can serve: refused at the load, not found out from wrong samples."""

from __future__ import annotations

import numpy as np
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from rolloutpipe_core.errors import EngineFailure

from .policy import Policy
from .slots import SlotCache

# Rotary embeddings that depend on the longest sequence of a batch, and so on a sample's neighbours.
SHARED_ROPE = frozenset({"dynamic", "longrope"})
# Of the logits' deviation: far above what bfloat16 rounds off, far below what a wrong mask or position does.
TOLERANCE = 0.05


def check_served(policy: Policy) -> None:
    """Raise EngineFailure unless rows of different lengths decode as each would alone."""
    layers = {type(layer) for layer in DynamicCache(config=policy.config).layers}
    if layers != {DynamicLayer}:
        raise _refusal(f"layers of {sorted(layer.__name__ for layer in layers)}")
    rope = getattr(policy.config, "rope_parameters", None) or {}
    if rope.get("rope_type") in SHARED_ROPE:
        raise _refusal(f"rotary embeddings of type {rope['rope_type']}")
    try:
        error = _decoding_error(policy)
    except (TypeError, NotImplementedError, AttributeError) as cause:
        raise _refusal(f"{type(cause).__name__}: {cause}") from cause
    # Written so that it holds for NaN, too.
    if not error < TOLERANCE:
        raise _refusal(f"logits off by {error:.3g} of their deviation")


@torch.inference_mode()
def _decoding_error(policy: Policy) -> float:
    """Root mean square of slots' logits less a plain forward's, in deviations of the latter."""
    sequences = [[token % policy.vocabulary for token in tokens] for tokens in ([3, 1, 4, 1, 5], [2, 7])]
    cache = SlotCache(len(sequences), window_quantum=8)
    prompts = [sequence[:-1] for sequence in sequences]
    for slot, prompt in enumerate(policy.prefill(prompts, max(map(len, prompts)))):
        cache.put(slot, prompt)
    positions = [len(prompt) for prompt in prompts]
    tokens = [sequence[-1] for sequence in sequences]
    given = policy.decode(cache, np.array(tokens), np.array(positions), max(positions))
    expected = torch.stack([policy.forward(torch.tensor([sequence]))[0, -1] for sequence in sequences])
    return float(((given - expected).square().mean().sqrt() / expected.std()).item())


def _refusal(given: str) -> EngineFailure:
    return EngineFailure(
        "this model cannot be served",
        given=given,
        expected="full causal attention in every layer, with positions and mask of each row's own",
        remedy="use a model such as Qwen3, Qwen2 or Llama",
    )

"""The two modules for which megatron-core without TransformerEngine has no good one.

Its own norm of this kind refuses sequence parallelism, and its own attention holds [heads, L, L] scores. These two are
torch's kernels: on a GPU torch takes its flash attention.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Norm(nn.RMSNorm):
    """RMSNorm (arXiv 1910.07467) over the last dimension; built as megatron-core builds its norms."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, device=torch.cuda.current_device(), dtype=config.params_dtype)
        # Each tensor-parallel rank then sees a part of the sequence: megatron-core sums the gradients of those marked.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class CausalAttention(nn.Module):
    """Causal attention over whole rows; it takes the place of megatron-core's `core_attention`."""

    def __init__(self, config: TransformerConfig, **_: Any) -> None:
        super().__init__()
        self._scale = config.kv_channels**-0.5

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """query [L, B, heads, D], key and value [L, B, groups, D] of this rank -> [L, B, heads * D]."""
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True, scale=self._scale, enable_gqa=True)
        return mixed.permute(2, 0, 1, 3).flatten(2)

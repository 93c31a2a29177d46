"""The one place where gradients are added up."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm


class GradientSums:
    """Unnormalised sums of the gradients of every backward since `clear`, in float32 (float64 of a float64 model).

    Each parameter's gradient is added and freed as soon as the backward has it, so that a bfloat16 gradient never
    sums up in bfloat16 over micro-batches and a second set of gradients is never whole in memory.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.tensors: dict[str, Tensor] = {
            name: torch.zeros_like(parameter, dtype=wide(parameter.dtype), requires_grad=False)
            for name, parameter in parameters.items()
        }
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._add, name))

    def clear(self) -> None:
        for total in self.tensors.values():
            total.zero_()

    def divide(self, by: float) -> None:
        for total in self.tensors.values():
            total.div_(by)

    def norm(self) -> float:
        """Euclidean norm of all of them together; inf or nan when any is not finite."""
        return float(get_total_norm(list(self.tensors.values())))

    def clip(self, norm: float, limit: float) -> None:
        """Scale them down so that their `norm` becomes `limit`, if it is larger."""
        if norm > limit:
            self.divide(norm / limit)

    def _add(self, name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.tensors[name].add_(parameter.grad)
        parameter.grad = None


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type sums, masters and losses have: at least float32."""
    return torch.promote_types(dtype, torch.float32)

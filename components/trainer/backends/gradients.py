"""The one place where gradients are added up.

    backward ──(a parameter at a time)──> Sum.add ──> … ──> divide ──> tensors ──> norm, clip ──> optimizer

A float sum rounds after every addition, so its last bits follow the order of the addends. The fixed-point sum rounds
each addend by itself and adds integers: any order gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from .shards import whole


class Sum(Protocol):
    """Unnormalised sum of one parameter's gradients since `clear`."""

    total: Tensor  # of the parameter's shape, in what the sum counts in

    def clear(self) -> None: ...

    def add(self, gradient: Tensor) -> None: ...

    def divided(self, by: int) -> Tensor:
        """The sum over `by`, in the type of `wide`; may be made of `total`, which then holds no sum until `clear`."""


class FloatSum:
    """In float32 (float64 of a float64 parameter)."""

    def __init__(self, parameter: Tensor) -> None:
        self.total = torch.zeros_like(parameter, dtype=wide(parameter.dtype), requires_grad=False)

    def clear(self) -> None:
        self.total.zero_()

    def add(self, gradient: Tensor) -> None:
        self.total.add_(gradient)

    def divided(self, by: int) -> Tensor:
        return self.total.div_(by)


class FixedPointSum:
    """In int64, counting steps of 2**-40.

    Range: as long as the largest magnitudes of all addends come to less than 2**23 = 8.4e6 together, no sum of any
    order can wrap; beyond that, and with an addend that is not finite, the sum is nan. That bound is a sum of
    integers, so the verdict depends on no order either. A million tokens may give 8 each to one element.
    Precision: 2**-41 = 4.5e-13 an addend. AdamW divides by sqrt(v) + eps: what is this far below eps = 1e-8 moves
    no weight, and the sum is still to be divided. A float32 addend above 2**-17 = 7.6e-6 is kept exactly.
    """

    SCALE = 2.0**40
    LIMIT = 2**63
    CHUNK = 2**18  # elements; what stays in a cache is added 2.4 times as fast as a whole embedding

    def __init__(self, parameter: Tensor) -> None:
        self.total = torch.zeros(parameter.shape, dtype=torch.int64, device=parameter.device)
        self._dtype = wide(parameter.dtype)
        self._bound: float = 0  # of |total|: an exact int, or inf

    def clear(self) -> None:
        self.total.zero_()
        self._bound = 0

    def add(self, gradient: Tensor) -> None:
        largest = float(torch.linalg.vector_norm(gradient, math.inf)) * self.SCALE
        self._bound += math.ceil(largest) if math.isfinite(largest) else math.inf
        if not self._holds:
            return
        parts = zip(self.total.view(-1).split(self.CHUNK), gradient.reshape(-1).split(self.CHUNK), strict=True)
        for total, part in parts:
            total.add_((part.to(self._dtype) * self.SCALE).round_().to(torch.int64))

    def divided(self, by: int) -> Tensor:
        if not self._holds:
            return torch.full_like(self.total, math.nan, dtype=self._dtype)
        return self.total.to(torch.float64).div_(self.SCALE * by).to(self._dtype)

    @property
    def _holds(self) -> bool:
        return self._bound < self.LIMIT


class GradientSums:
    """Unnormalised sums of the gradients of every backward since `clear`.

    Each parameter's gradient is added and freed as soon as the backward has it, so that a bfloat16 gradient never
    sums up in bfloat16 over micro-batches and a second set of gradients is never whole in memory.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], make_sum: Callable[[Tensor], Sum]) -> None:
        self._sums = {name: make_sum(parameter) for name, parameter in parameters.items()}
        self.tensors: dict[str, Tensor] = {}
        """The update's gradients, from `divide` to `clear`."""
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._add, name))

    @property
    def totals(self) -> list[Tensor]:
        """What was summed so far, undivided."""
        return [each.total for each in self._sums.values()]

    def clear(self) -> None:
        self.tensors = {}
        for each in self._sums.values():
            each.clear()

    def divide(self, by: int) -> None:
        """Make the sums over `by` the update's gradients. Once an update."""
        self.tensors = {name: each.divided(by) for name, each in self._sums.items()}

    def norm(self) -> float:
        """Euclidean norm of all gradients together, those of all ranks' shards; inf or nan when any is not finite."""
        return float(whole(get_total_norm(list(self.tensors.values()))))

    def clip(self, norm: float, limit: float) -> None:
        """Scale them down so that their `norm` becomes `limit`, if it is larger."""
        if norm > limit:
            for gradient in self.tensors.values():
                gradient.div_(norm / limit)

    def _add(self, name: str, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self._sums[name].add(parameter.grad)
        parameter.grad = None


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type gradients, masters and losses have: at least float32."""
    return torch.promote_types(dtype, torch.float32)

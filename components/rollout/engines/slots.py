"""The slot KV cache: one row of keys and values a sample, shared by all decode steps.

    [layers, 2 (keys, values), slots, kv heads, capacity, head size]

One tensor, so that putting a prompt into a slot or moving a slot is one copy for all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from .shapes import round_up


@dataclass(frozen=True, slots=True)
class PrefilledPrompt:
    """What a group's K samples start from."""

    kv: Tensor  # [layers, 2, kv heads, P, head size]
    logits: Tensor  # float32 [V], those after the prompt's last token

    @property
    def length(self) -> int:
        return self.kv.shape[3]


class SlotCache(Cache):
    """What a Hugging Face model takes for its cache in a decode step of one token a slot.

    `begin_step` says where each row writes and how far all rows look; `update` is called by every attention
    layer. Rows 0 .. n-1 take part in a step of n rows. Positions after a row's own hold old, finite values:
    the caller's mask hides them.
    """

    def __init__(self, slots: int, window_quantum: int) -> None:
        super().__init__(layers=[])
        self.window_quantum = window_quantum
        self._slots = slots
        self._kv: Tensor | None = None
        self._layers: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def put(self, slot: int, prompt: PrefilledPrompt) -> None:
        """Write a prompt's keys and values to the start of a slot."""
        self._reserve(prompt.kv, prompt.length)
        assert self._kv is not None
        self._kv[:, :, slot, :, : prompt.length] = prompt.kv

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of a slot to another."""
        assert self._kv is not None
        self._kv[:, :, target, :, :length] = self._kv[:, :, source, :, :length]

    def begin_step(self, positions: Tensor, longest: int) -> int:
        """Row i writes at positions[i] (int64 [n], the largest is `longest`). Returns the step's window."""
        assert self._kv is not None, "a slot holds a prompt before it decodes"
        self._reserve(self._kv[:, :, 0], longest + 1)
        rows, heads, capacity = len(positions), self._kv.shape[3], self._kv.shape[4]
        # Row r, head h, position p of a layer viewed as [slots * heads * capacity, head size].
        starts = torch.arange(rows * heads, device=positions.device).view(rows, heads) * capacity
        self._targets = (starts + positions[:, None]).flatten()
        self._rows = rows
        self._window = round_up(longest + 1, self.window_quantum)
        return self._window

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write this step's keys and values, each [n, kv heads, 1, head size]; return those of the window."""
        keys, values, flat_keys, flat_values = self._layers[layer_idx]
        flat_keys.index_copy_(0, self._targets, key_states.reshape(-1, key_states.shape[-1]))
        flat_values.index_copy_(0, self._targets, value_states.reshape(-1, value_states.shape[-1]))
        return keys[: self._rows, :, : self._window], values[: self._rows, :, : self._window]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows differ in length: positions and mask are always given to the model, and this is not asked."""
        raise NotImplementedError("give position_ids and a 4-d attention mask with a SlotCache")

    def _reserve(self, like: Tensor, length: int) -> None:
        """Have room for `length` positions; grows by half at least, so that copying stays rare."""
        held = 0 if self._kv is None else self._kv.shape[4]
        if length <= held:
            return
        layers, two, heads, _, size = like.shape
        capacity = round_up(max(length, held + held // 2), self.window_quantum)
        grown = like.new_zeros((layers, two, self._slots, heads, capacity, size))
        if self._kv is not None:
            grown[..., :held, :] = self._kv
        self._kv = grown
        self._layers = [
            (layer[0], layer[1], layer[0].view(-1, size), layer[1].view(-1, size)) for layer in grown.unbind(0)
        ]

"""Hugging Face's tensors to megatron-core's shards and back, to the bit.

    Hugging Face                      megatron-core, on each tensor-parallel rank
    embed_tokens, lm_head             rows of the vocabulary, padded with zeros to a multiple of the ranks
    q_proj, k_proj, v_proj            linear_qkv: of each key/value head [its query heads; key; value], heads split
    o_proj, down_proj                 linear_proj, linear_fc2: columns
    gate_proj, up_proj                linear_fc1: [rows of gate; rows of up]
    norms                             whole

On both sides a vector (a bias) goes as the rows of its matrix do. A pipeline stage has a run of the layers; the first
has the embedding, the last the final norm and the head, which is a copy of the embedding when the two are tied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from .architecture import Architecture

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"


class Rule(Protocol):
    """How one or several Hugging Face tensors are one of megatron-core's."""

    def shard(self, tensors: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
        """What tensor-parallel rank `rank` of `ranks` holds."""

    def join(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensors again, from all ranks' shards in order."""


@dataclass(frozen=True, slots=True)
class Whole:
    """One tensor, the same on every rank."""

    def shard(self, tensors: Sequence[Tensor], rank: int, ranks: int) -> Tensor:  # noqa: ARG002
        return tensors[0]

    def join(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (shards[0],)


@dataclass(frozen=True, slots=True)
class Columns:
    """A matrix [out, in] split along `in`."""

    def shard(self, tensors: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
        return tensors[0].chunk(ranks, dim=1)[rank]

    def join(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (torch.cat(list(shards), dim=1),)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A matrix [vocabulary, hidden] split along the vocabulary, padded with zeros so that all shards are equal."""

    rows: int

    def shard(self, tensors: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
        missing = padded_vocabulary(self.rows, ranks) - self.rows
        return pad(tensors[0], (0, 0, 0, missing)).chunk(ranks)[rank]

    def join(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (torch.cat(list(shards))[: self.rows],)


@dataclass(frozen=True, slots=True)
class Attention:
    """Query, key and value rows, regrouped by key/value head."""

    groups: int
    head_dim: int

    def shard(self, tensors: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
        by_group = [tensor.unflatten(0, (self.groups, -1)) for tensor in tensors]
        return torch.cat(by_group, dim=1).chunk(ranks)[rank].flatten(0, 1)

    def join(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        by_group = torch.cat(list(shards)).unflatten(0, (self.groups, -1))
        rows = by_group.shape[1]
        parts = by_group.split([rows - 2 * self.head_dim, self.head_dim, self.head_dim], dim=1)
        return tuple(part.flatten(0, 1) for part in parts)


@dataclass(frozen=True, slots=True)
class Gated:
    """The gate's rows of a rank, then its rows of the up projection."""

    def shard(self, tensors: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
        return torch.cat([tensor.chunk(ranks)[rank] for tensor in tensors])

    def join(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        halves = [shard.chunk(2) for shard in shards]
        return tuple(torch.cat(parts) for parts in zip(*halves, strict=True))


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter of megatron-core."""

    names: tuple[str, ...]  # Hugging Face's, in the order the rule takes them
    rule: Rule
    copied: bool = False  # another stage holds the same


@dataclass(frozen=True, slots=True)
class Stage:
    """The part of the layers that one pipeline rank of `stages` holds."""

    index: int
    stages: int

    def layers(self, architecture: Architecture) -> range:
        count = architecture.layers // self.stages
        return range(self.index * count, (self.index + 1) * count)

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.stages - 1


def stage_entries(architecture: Architecture, stage: Stage) -> dict[str, Entry]:
    """Every parameter of a stage under megatron-core's name, in which a stage's layers count from 0."""
    entries: dict[str, Entry] = {}
    vocabulary = Vocabulary(architecture.vocabulary)
    if stage.first:
        entries["embedding.word_embeddings.weight"] = Entry((EMBEDDING,), vocabulary)
    for place, layer in enumerate(stage.layers(architecture)):
        for name, entry in _layer_entries(architecture, f"model.layers.{layer}.").items():
            entries[f"decoder.layers.{place}.{name}"] = entry
    if stage.last:
        entries["decoder.final_layernorm.weight"] = Entry((FINAL_NORM,), Whole())
        if not architecture.tied:
            entries["output_layer.weight"] = Entry((HEAD,), vocabulary)
        elif not stage.first:
            entries["output_layer.weight"] = Entry((EMBEDDING,), vocabulary, copied=True)
    return entries


def tensor_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Hugging Face's parameters by name; a tied head is none."""
    a = architecture
    queries, keys = a.heads * a.head_dim, a.groups * a.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (a.vocabulary, a.hidden), FINAL_NORM: (a.hidden,)}
    if not a.tied:
        shapes[HEAD] = (a.vocabulary, a.hidden)
    in_layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (a.hidden,),
        "post_attention_layernorm.weight": (a.hidden,),
        "self_attn.q_proj.weight": (queries, a.hidden),
        "self_attn.k_proj.weight": (keys, a.hidden),
        "self_attn.v_proj.weight": (keys, a.hidden),
        "self_attn.o_proj.weight": (a.hidden, queries),
        "mlp.gate_proj.weight": (a.ffn, a.hidden),
        "mlp.up_proj.weight": (a.ffn, a.hidden),
        "mlp.down_proj.weight": (a.hidden, a.ffn),
    }
    if a.qk_norm:
        in_layer |= {f"self_attn.{part}_norm.weight": (a.head_dim,) for part in "qk"}
    if a.qkv_bias:
        in_layer |= {f"self_attn.{part}_proj.bias": (queries if part == "q" else keys,) for part in "qkv"}
    for layer in range(a.layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in in_layer.items()}
    return shapes


def padded_vocabulary(vocabulary: int, ranks: int) -> int:
    """The least multiple of `ranks` that holds it."""
    return -(-vocabulary // ranks) * ranks


def _layer_entries(architecture: Architecture, prefix: str) -> dict[str, Entry]:
    def entry(rule: Rule, *names: str) -> Entry:
        return Entry(tuple(prefix + name for name in names), rule)

    attention = Attention(architecture.groups, architecture.head_dim)
    projections = [f"self_attn.{part}_proj" for part in "qkv"]
    entries = {
        "input_layernorm.weight": entry(Whole(), "input_layernorm.weight"),
        "self_attention.linear_qkv.weight": entry(attention, *(f"{name}.weight" for name in projections)),
        "self_attention.linear_proj.weight": entry(Columns(), "self_attn.o_proj.weight"),
        "pre_mlp_layernorm.weight": entry(Whole(), "post_attention_layernorm.weight"),
        "mlp.linear_fc1.weight": entry(Gated(), "mlp.gate_proj.weight", "mlp.up_proj.weight"),
        "mlp.linear_fc2.weight": entry(Columns(), "mlp.down_proj.weight"),
    }
    if architecture.qkv_bias:
        entries["self_attention.linear_qkv.bias"] = entry(attention, *(f"{name}.bias" for name in projections))
    if architecture.qk_norm:
        for part in "qk":
            entries[f"self_attention.{part}_layernorm.weight"] = entry(Whole(), f"self_attn.{part}_norm.weight")
    return entries

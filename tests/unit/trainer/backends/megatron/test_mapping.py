"""Hugging Face's tensors to megatron-core's shards and back: by hand, exact both ways, and complete."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rolloutpipe_components.trainer.backends.megatron.architecture import Architecture, read_architecture
from rolloutpipe_components.trainer.backends.megatron.mapping import (
    Attention,
    Columns,
    Gated,
    Stage,
    Vocabulary,
    Whole,
    padded_vocabulary,
    stage_entries,
    tensor_shapes,
)
from transformers import LlamaConfig, Qwen2Config, Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

SMALL = Architecture(
    layers=4,
    hidden=8,
    heads=4,
    groups=2,
    head_dim=2,
    ffn=12,
    vocabulary=13,
    positions=32,
    eps=1e-6,
    tied=False,
    qkv_bias=True,
    qk_norm=True,
)
SIZES = {
    "vocab_size": 13,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def rows(*numbers: float) -> torch.Tensor:
    """A matrix of one column."""
    return torch.tensor(numbers)[:, None]


def test_query_key_and_value_are_regrouped_by_key_value_head():
    """4 query heads on 2 key/value heads of dimension 1: [q0 q1 k0 v0 | q2 q3 k1 v1]."""
    tensors = [rows(0, 1, 2, 3), rows(10, 11), rows(20, 21)]
    rule = Attention(groups=2, head_dim=1)
    assert rule.shard(tensors, 0, 1)[:, 0].tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    assert rule.shard(tensors, 1, 2)[:, 0].tolist() == [2, 3, 11, 21]
    assert rule.shard([tensor[:, 0] for tensor in tensors], 1, 2).tolist() == [2, 3, 11, 21]  # a bias, too


def test_gate_and_up_are_split_each_by_itself():
    tensors = [rows(0, 1, 2, 3), rows(10, 11, 12, 13)]
    assert Gated().shard(tensors, 0, 2)[:, 0].tolist() == [0, 1, 10, 11]
    assert Gated().shard(tensors, 1, 2)[:, 0].tolist() == [2, 3, 12, 13]


def test_the_vocabulary_is_padded_with_zeros_to_equal_shards():
    assert [padded_vocabulary(13, ranks) for ranks in (1, 2, 4, 13)] == [13, 14, 16, 13]
    shards = [Vocabulary(3).shard([rows(1, 2, 3)], rank, 2) for rank in range(2)]
    assert [shard[:, 0].tolist() for shard in shards] == [[1, 2], [3, 0]]


def test_columns_and_whole_tensors():
    matrix = torch.arange(8.0).view(2, 4)
    assert Columns().shard([matrix], 1, 2).tolist() == [[2, 3], [6, 7]]
    assert Whole().shard([matrix], 1, 2) is matrix


@given(
    ranks=st.sampled_from([1, 2, 4]),
    groups=st.sampled_from([4, 8]),
    shared=st.integers(1, 3),
    head_dim=st.integers(1, 4),
    vocabulary=st.integers(16, 40),
    seed=st.integers(0, 99),
)
def test_every_rule_gives_back_what_it_was_given(ranks, groups, shared, head_dim, vocabulary, seed):
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int = 8) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator)

    cases = [
        (Attention(groups, head_dim), [matrix(groups * head_dim * n) for n in (shared, 1, 1)]),
        (Gated(), [matrix(8), matrix(8)]),
        (Columns(), [matrix(3)]),
        (Vocabulary(vocabulary), [matrix(vocabulary)]),
        (Whole(), [matrix(3)]),
    ]
    for rule, tensors in cases:
        shards = [rule.shard(tensors, rank, ranks) for rank in range(ranks)]
        assert len({shard.shape for shard in shards}) == 1
        for before, after in zip(tensors, rule.join(shards), strict=True):
            assert torch.equal(before, after)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_stages_have_every_parameter_once(stages, tied):
    architecture = replace(SMALL, tied=tied)
    parts = [stage_entries(architecture, Stage(index, stages)) for index in range(stages)]
    owned = [name for part in parts for entry in part.values() if not entry.copied for name in entry.names]
    assert sorted(owned) == sorted(tensor_shapes(architecture))
    copies = [name for part in parts for name, entry in part.items() if entry.copied]
    assert copies == (["output_layer.weight"] if tied and stages > 1 else [])


def test_layers_are_counted_anew_on_each_stage():
    entries = stage_entries(SMALL, Stage(1, 2))
    assert entries["decoder.layers.0.input_layernorm.weight"].names == ("model.layers.2.input_layernorm.weight",)
    assert "embedding.word_embeddings.weight" not in entries


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**SIZES, head_dim=6, tie_word_embeddings=True),
        Qwen2Config(**SIZES, tie_word_embeddings=False),
        LlamaConfig(**SIZES, tie_word_embeddings=False),
        LlamaConfig(**SIZES, tie_word_embeddings=True),
    ],
    ids=["qwen3", "qwen2", "llama", "llama tied"],
)
def test_the_parameters_are_those_of_transformers(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert tensor_shapes(read_architecture(config)) == expected

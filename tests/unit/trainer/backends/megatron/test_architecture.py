"""What of a Hugging Face config is taken, and what is refused."""

from __future__ import annotations

import pytest
import torch
from rolloutpipe_components.trainer.backends.megatron.architecture import (
    read_architecture,
    read_config,
    rotary_frequencies,
)
from transformers import GemmaConfig, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from rolloutpipe_core.errors import BadInput

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}


def test_what_is_read():
    qwen3 = read_architecture(Qwen3Config(**SIZES, head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=True))
    assert (qwen3.head_dim, qwen3.eps, qwen3.tied, qwen3.qk_norm, qwen3.qkv_bias) == (32, 1e-5, True, True, False)
    qwen2 = read_architecture(Qwen2Config(**SIZES))
    assert (qwen2.head_dim, qwen2.groups, qwen2.qk_norm, qwen2.qkv_bias) == (16, 2, False, True)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GemmaConfig(**SIZES), "model_type gemma"),
        (LlamaConfig(**SIZES, hidden_act="gelu"), "hidden_act gelu"),
        (LlamaConfig(**SIZES, attention_bias=True), "attention_bias True"),
        (LlamaConfig(**SIZES, mlp_bias=True), "mlp_bias True"),
        (Qwen2Config(**SIZES, use_sliding_window=True, max_window_layers=1), "sliding_attention"),
        (Qwen3Config(**SIZES, rope_parameters=YARN), "rope_type yarn"),
    ],
)
def test_what_is_not_known_is_refused(config, reason):
    with pytest.raises(BadInput, match=reason):
        read_architecture(config)


@pytest.mark.parametrize(
    "parameters", [{"rope_type": "default", "rope_theta": 1e6}, LLAMA3, {**LLAMA3, "rope_type": "linear"}]
)
def test_rotary_frequencies_are_those_of_transformers(parameters):
    config = LlamaConfig(**SIZES, rope_parameters=parameters)
    assert torch.equal(rotary_frequencies(config, 16), LlamaRotaryEmbedding(config).inv_freq)


def test_a_folder_without_a_model(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(BadInput):
            read_config(folder)

"""What of a Hugging Face config this backend needs, and what it refuses: Llama, Qwen2 (2.5) and Qwen3 decoders.

A model that is only nearly one of these would train something else than the engine samples, without a word: so
whatever is not known is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rolloutpipe_core.errors import BadInput

FAMILIES = ("llama", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3")
"""Those whose frequencies depend neither on the length of a sequence nor on a factor beside them."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes and switches of a decoder: RMSNorm, grouped-query attention with rotary positions, SwiGLU."""

    layers: int
    hidden: int
    heads: int
    groups: int  # key and value heads; each serves heads / groups query heads
    head_dim: int
    ffn: int
    vocabulary: int
    positions: int  # longest sequence
    eps: float  # of the norms
    tied: bool  # the head is the embedding
    qkv_bias: bool
    qk_norm: bool


def read_config(directory: Path) -> PretrainedConfig:
    """The config in `directory`. Raises BadInput when there is none."""
    if not directory.is_dir():
        raise BadInput("no folder with a model", given=str(directory), expected="config.json and *.safetensors")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(directory)
    except (OSError, ValueError) as error:
        raise BadInput("no Hugging Face causal LM in this folder", f"{directory}: {error}") from error
    return config


def read_architecture(config: PretrainedConfig) -> Architecture:
    """Raises BadInput for a model that this backend does not know."""
    if unknown := list(_unknown(config)):
        raise BadInput(
            "trainer.kind megatron does not know this architecture",
            given=", ".join(unknown),
            expected=f"a {', '.join(FAMILIES)} with SwiGLU, full attention and rope of type {', '.join(ROPE_TYPES)}",
            remedy="set trainer.kind to torch",
        )
    values: Any = config
    return Architecture(
        layers=values.num_hidden_layers,
        hidden=values.hidden_size,
        heads=values.num_attention_heads,
        groups=values.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or values.hidden_size // values.num_attention_heads,
        ffn=values.intermediate_size,
        vocabulary=values.vocab_size,
        positions=values.max_position_embeddings,
        eps=values.rms_norm_eps,
        tied=values.tie_word_embeddings,
        qkv_bias=config.model_type == "qwen2",
        qk_norm=config.model_type == "qwen3",
    )


def rotary_frequencies(config: PretrainedConfig, head_dim: int) -> Tensor:
    """Radians a position of each pair of dimensions, float32 [head_dim / 2], as transformers makes them."""
    parameters: Any = config.rope_parameters
    if parameters["rope_type"] == "default":
        base: float = parameters["rope_theta"]
        return 1.0 / (base ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim))
    frequencies: Tensor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config)[0]
    return frequencies


def _unknown(config: PretrainedConfig) -> Iterator[str]:
    """What of the config is outside, as `key value`."""
    if config.model_type not in FAMILIES:
        yield f"model_type {config.model_type}"
        return
    rope: Any = config.rope_parameters
    found = {
        "hidden_act": (config.hidden_act, "silu"),
        "attention_bias": (getattr(config, "attention_bias", False), False),
        "mlp_bias": (getattr(config, "mlp_bias", False), False),
        "layer_types": (set(getattr(config, "layer_types", None) or ()) - {"full_attention"}, set()),
        "partial_rotary_factor": (rope.get("partial_rotary_factor", 1.0), 1.0),
    }
    for key, (value, known) in found.items():
        if value != known:
            yield f"{key} {value}"
    if rope["rope_type"] not in ROPE_TYPES:
        yield f"rope_type {rope['rope_type']}"

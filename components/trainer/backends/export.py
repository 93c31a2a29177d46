"""Weights out of the trainer: a folder that transformers loads, with the same bytes for the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel

from .shards import whole

# What tokenizers of transformers are made of, by name (`vocab.json`, `tokenizer.model`, `chat_template.jinja`, ...).
TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "*.model",
)


def read_tokenizer_files(directory: Path) -> dict[str, bytes]:
    """The tokenizer's files by name. They are kept in memory: the folder may be a cache that is emptied."""
    paths = {path for pattern in TOKENIZER_FILES for path in directory.glob(pattern) if path.is_file()}
    return {path.name: path.read_bytes() for path in sorted(paths)}


def export_model(model: PreTrainedModel, tokenizer_files: Mapping[str, bytes], directory: Path) -> None:
    """Write safetensors in the model's dtype (a tied weight once), config.json, generation_config.json, tokenizer."""
    model.save_pretrained(directory)
    for name, content in tokenizer_files.items():
        (directory / name).write_bytes(content)


def whole_model(model: PreTrainedModel, dtype: torch.dtype, here: bool) -> PreTrainedModel | None:
    """A copy of a sharded model on the CPU, in `dtype`; None where it is not wanted `here`. All ranks take part."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        full = whole(tensor)
        if here:
            tensors[name] = (full.to(dtype) if full.is_floating_point() else full).cpu()
    return model_of(model.config, model.generation_config, tensors, dtype) if here else None


def model_of(
    config: PretrainedConfig, generation: GenerationConfig | None, tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> PreTrainedModel:
    """A model on the CPU that has these tensors, all of its parameters in `dtype`; nothing is copied."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.load_state_dict(tensors, assign=True)
    model.tie_weights()
    if generation is not None:
        model.generation_config = generation
    return model

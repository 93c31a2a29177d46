"""Whole tensors to a folder that transformers loads, in the files the `torch` backend writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig

from ..export import export_model, model_of, read_tokenizer_files
from .mapping import EMBEDDING, HEAD


class Exporter:
    """What a model's folder holds beside the weights, kept: the folder may be a cache that is emptied."""

    def __init__(self, directory: Path, config: PretrainedConfig, dtype: torch.dtype) -> None:
        self._config, self._dtype = config, dtype
        self._tokenizer_files = read_tokenizer_files(directory)
        has_generation = (directory / "generation_config.json").is_file()
        self._generation = GenerationConfig.from_pretrained(directory) if has_generation else None

    def write(self, whole: Mapping[str, Tensor], directory: Path) -> None:
        """`whole`: every parameter by its Hugging Face name, without a tied head."""
        model = model_of(self._config, self._generation, {HEAD: whole[EMBEDDING], **whole}, self._dtype)
        export_model(model, self._tokenizer_files, directory)

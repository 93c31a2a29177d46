"""Tiny models with random weights, made here; nothing is downloaded."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rolloutpipe_components.rollout.engines.policy import Policy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from rolloutpipe_core.config.models import ModelConfig

VOCABULARY = 61
EOS_ID = 1
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 160,
    "eos_token_id": EOS_ID,
    "bos_token_id": None,
    "pad_token_id": 0,
    "initializer_range": 0.3,  # far from uniform, so that log-probabilities differ between ids
}


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


def build(family: str, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True))


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """A saved model of a family ("qwen3" or "llama") and a seed."""
    root = tmp_path_factory.mktemp("models")

    def folder(family: str = "qwen3", seed: int = 0) -> Path:
        path = root / f"{family}-{seed}"
        if not path.exists():
            build(family, seed).save_pretrained(path)
        return path

    return folder


@pytest.fixture(scope="session")
def policies(folders: Callable[..., Path]) -> Callable[[str, str], Policy]:
    """A loaded model of a family and a dtype; shared, so tests leave its weights alone."""
    loaded: dict[tuple[str, str], Policy] = {}

    def policy(family: str = "qwen3", dtype: str = "float32") -> Policy:
        if (family, dtype) not in loaded:
            path = folders(family)
            loaded[family, dtype] = Policy.from_directory(path, ModelConfig(path=str(path), dtype=dtype))
        return loaded[family, dtype]

    return policy


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Twelve prompts of 3 to 47 tokens: several prefill lengths, more than one sample slot holds at once."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(2, VOCABULARY, (3 + 4 * i,), generator=generator).tolist() for i in range(12)]

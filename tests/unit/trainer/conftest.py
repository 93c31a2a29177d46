"""Ragged random groups, tiny models on disk and trainers of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rolloutpipe_components.trainer.backends.torch import TorchTrainer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CohereConfig,
    FalconH1Config,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    HyperCLOVAXConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from rolloutpipe_core.config.models import LossConfig, ModelConfig, OptimizerConfig, SamplingConfig, TrainerConfig
from rolloutpipe_core.domain import FinishReason, Group, Sample, VersionSpan, WeightVersion

VOCABULARY = 32
MAX_NEW_TOKENS = 16
VERSION = WeightVersion(0, "0" * 64)

GroupMaker = Callable[..., Group]
ModelMaker = Callable[..., Path]
TrainerMaker = Callable[..., TorchTrainer]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_group() -> GroupMaker:
    """`make_group(seed, index)`: K samples of ragged lengths, with holes in their masks.

    Behaviour log-probabilities lie around ln(1/32), which is near what an untrained model of 32 ids gives, so that
    ratios fall on both sides of both clipping bounds. Samples in `untrained` have a mask of zeros.
    """

    def make(seed: int, index: int = 0, samples: int = 4, untrained: tuple[int, ...] = ()) -> Group:
        random = np.random.default_rng([seed, index])
        prompt_ids = random.integers(2, VOCABULARY, random.integers(2, 7), dtype=np.int32)
        return Group(
            run="test",
            lineage=0,
            round=0,
            index=index,
            attempt=1,
            version=VERSION,
            prompt_id=f"p{index}",
            samples=tuple(_sample(random, place, prompt_ids, place in untrained) for place in range(samples)),
        )

    return make


def _sample(random: np.random.Generator, index: int, prompt_ids: np.ndarray, untrained: bool) -> Sample:
    length = int(random.integers(1, MAX_NEW_TOKENS + 1))
    mask = (random.random(length) < 0.8).astype(np.uint8)
    mask[-1] = 1
    return Sample(
        index=index,
        prompt_ids=prompt_ids,
        response_ids=random.integers(2, VOCABULARY, length, dtype=np.int32),
        behavior_logprobs=random.uniform(-4.0, -3.0, length).astype(np.float32),
        loss_mask=np.zeros_like(mask) if untrained else mask,
        reward=0.0,
        advantage=float(random.normal()),
        finish_reason=FinishReason.STOP,
        spans=(VersionSpan(VERSION, 0, length),),
    )


SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "initializer_range": 0.2,  # so that an untrained model's logits differ
}


def _config(family: str) -> PretrainedConfig:
    if family == "gpt2":  # its configuration asks for dropout of 0.1
        return GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2)
    classes = {"cohere": CohereConfig, "gemma2": Gemma2Config, "llama": LlamaConfig, "qwen3": Qwen3Config}
    if family in classes:
        return classes[family](**SMALL | {"tie_word_embeddings": family != "llama"})
    scaled = {"granite": GraniteConfig, "hyperclovax": HyperCLOVAXConfig}
    if family in scaled:
        return scaled[family](**SMALL, logits_scaling=3.0)
    mamba = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
    return FalconH1Config(**SMALL, **mamba, lm_head_multiplier=0.3)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> ModelMaker:
    """`make_model(family, seed)`: a folder with random weights in float32 and a tokenizer, made once."""
    made: dict[tuple[str, int], Path] = {}

    def make(family: str = "qwen3", seed: int = 0) -> Path:
        if (family, seed) not in made:
            torch.manual_seed(seed)
            folder = tmp_path_factory.mktemp(f"{family}-{seed}")
            AutoModelForCausalLM.from_config(_config(family)).save_pretrained(folder)
            make_tokenizer().save_pretrained(folder)
            made[family, seed] = folder
        return made[family, seed]

    return make


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Words `w2` to `w31` beside `<pad>` (0) and `<eos>` (1)."""
    words = ["<pad>", "<eos>", *(f"w{number}" for number in range(2, VOCABULARY))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


@pytest.fixture
def make_trainer(make_model: ModelMaker) -> TrainerMaker:
    """`make_trainer(folder, dtype=..., temperature=..., deterministic=..., field=...)`.

    A field is any of LossConfig, OptimizerConfig and TrainerConfig; `kind` is the loss's.

    `dtype="float64"` is for tests alone, which is why it goes around the configuration's validation.
    """

    def make(
        folder: Path | None = None,
        *,
        dtype: str = "float32",
        temperature: float = 1.0,
        reference: Path | None = None,
        deterministic: bool = False,
        **fields: Any,
    ) -> TorchTrainer:
        folder = folder or make_model()
        sections = (LossConfig, OptimizerConfig, TrainerConfig)
        assert set(fields) <= {name for section in sections for name in section.model_fields}
        loss, optimizer, trainer = (
            section(**{name: fields.pop(name) for name in list(fields) if name in section.model_fields})
            for section in sections
        )
        return TorchTrainer(
            folder,
            model=ModelConfig.model_construct(path=str(folder), dtype=dtype, device="cpu"),
            loss=loss,
            optimizer=optimizer,
            trainer=trainer,
            sampling=SamplingConfig(temperature=temperature, max_new_tokens=MAX_NEW_TOKENS),
            reference=reference,
            deterministic=deterministic,
        )

    return make

from collections.abc import Callable

import pytest
import torch
from rolloutpipe_components.rollout.engines.policy import Policy
from rolloutpipe_components.rollout.engines.served import check_served
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rolloutpipe_core.errors import EngineFailure

SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


@pytest.mark.parametrize(
    "build",
    [
        lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=2)),
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES)).bfloat16(),
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=32, n_layer=1, n_head=4)),
    ],
)
def test_plain_causal_models_are_served(build: Callable[[], PreTrainedModel]) -> None:
    torch.manual_seed(0)
    check_served(Policy(build()))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=8)), "SlidingWindow"),
        (lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=DYNAMIC)), "type dynamic"),
        (lambda: BloomForCausalLM(BloomConfig(vocab_size=61, hidden_size=32, n_layer=1, n_head=4)), "position_ids"),
    ],
)
def test_others_are_refused(build: Callable[[], PreTrainedModel], words: str) -> None:
    with pytest.raises(EngineFailure, match=rf"cannot be served.*{words}"):
        check_served(Policy(build()))


def test_a_model_that_takes_positions_from_elsewhere_is_refused() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.3))
    rotate = model.model.rotary_emb.forward

    def from_column(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return rotate(x, torch.arange(position_ids.shape[1])[None])

    model.model.rotary_emb.forward = from_column
    with pytest.raises(EngineFailure, match="logits off by"):
        check_served(Policy(model))
